package promotiontype

import (
	"fmt"
	"strings"
)

type field struct {
	name, schema string
}

const idSchema = `{"type": "integer", "minimum": 1, "maximum": 9223372036854775807}`

var envelopeFields = []field{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	{"promotionId", idSchema},
	{"promotionSummaryId", idSchema},
	{"targetId", idSchema},
	{"retryCount", fmt.Sprintf(`{"description": "retries so far; only in retry records", "type": "integer", "minimum": 0, "maximum": %d}`, MaxRetryCount)},
}

// RecordSchema returns the JSON Schema of the type's records.
func (t Type) RecordSchema() string {
	required := []string{"promotionId", "promotionSummaryId", "targetId"}
	for _, f := range t.fields {
		required = append(required, f.name)
	}
	title := "A record of " + t.PublishTopic() + ", and of " + t.RetryTopic() + " with retryCount"
	return objectSchema(title, required, append(t.fields[:len(t.fields):len(t.fields)], envelopeFields...))
}

// StartedSchema returns the JSON Schema of the started event.
func StartedSchema() string {
	return objectSchema("A record of "+StartedTopic, []string{"promotionId", "promotionType"}, []field{
		{"promotionId", idSchema},
		{"promotionType", `{"enum": ["` + strings.Join(Names(), `", "`) + `"]}`},
		{"totalCount", `{"description": "used for sizing; 0 or absent when unknown", "type": "integer", "minimum": 0, "maximum": 9223372036854775807}`},
	})
}

func objectSchema(title string, required []string, fields []field) string {
	properties := make([]string, len(fields))
	for i, f := range fields {
		properties[i] = fmt.Sprintf("    %q: %s", f.name, f.schema)
	}
	return fmt.Sprintf(`{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": %q,
  "type": "object",
  "required": ["%s"],
  "properties": {
%s
  }
}
`, title, strings.Join(required, `", "`), strings.Join(properties, ",\n"))
}
