package promotiontype

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
)

// records are payloads with the expected result, for the decoder and for the JSON Schemas.
var records = []struct {
	name, schema, payload string
	refused               string // part of the error; empty when the record is good
	schemaBlind           bool   // right for the schema (it can't see it), refused by the decoder
}{
	{name: "point", schema: "point", payload: `{"promotionId":12345,"promotionSummaryId":9,"targetId":777,"amount":500}`},
	{name: "unknown fields are ignored", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"campaign":"spring"}`},
	{name: "retry", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"retryCount":5}`},
	{name: "largest ids", schema: "point", payload: `{"promotionId":9223372036854775807,"promotionSummaryId":9223372036854775807,"targetId":9223372036854775807,"amount":9223372036854775807}`},
	{name: "negative amount", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":-5}`, refused: "amount: must be > 0, got -5"},
	{name: "no amount", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7}`, refused: "amount: must be > 0"},
	{name: "fractional amount", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":0.5}`, refused: "0.5"},
	{name: "amount beyond int64", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":9223372036854775808}`, refused: "9223372036854775808"},
	{name: "amount as text", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":"5"}`, refused: "string"},
	{name: "zero ids", schema: "point", payload: `{"promotionId":0,"promotionSummaryId":0,"targetId":0,"amount":5}`, refused: "promotionSummaryId: must be > 0"},
	{name: "too many retries", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"retryCount":6}`, refused: "retryCount: must be 0 to 5"},
	{name: "voucher", schema: "voucher", payload: `{"promotionId":12345,"promotionSummaryId":9,"targetId":777,"voucherId":"V-2026-A"}`},
	{name: "voucher of 64 characters that are not bytes", schema: "voucher", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"` + strings.Repeat("é", 64) + `"}`},
	{name: "voucher of 65 characters", schema: "voucher", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"` + strings.Repeat("v", 65) + `"}`, refused: "got 65"},
	{name: "empty voucher", schema: "voucher", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":""}`, refused: "got 0"},
	{name: "not JSON", schema: "voucher", payload: `{"promotionId":1,`, refused: "unexpected end"},
	{name: "not an object", schema: "voucher", payload: `[]`, refused: "array"},
	{name: "an amount that comes twice", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"amount":1}`, refused: `"amount" comes twice`, schemaBlind: true},
	{name: "an amount in another case too", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"Amount":1}`, refused: `"Amount": the field's name is amount`, schemaBlind: true},
	{name: "names in another case alone", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"TargetId":7,"amount":500}`, refused: `"TargetId": the field's name is targetId`},
	{name: "another field twice", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"note":1,"NOTE":2}`, refused: `"NOTE" comes twice`, schemaBlind: true},
	{name: "a name written with escapes", schema: "point", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"\u0061mount":1}`, refused: `"amount" comes twice`, schemaBlind: true},
	{name: "a voucher that is not UTF-8", schema: "voucher", payload: "{\"promotionId\":1,\"promotionSummaryId\":9,\"targetId\":7,\"voucherId\":\"V\xff\"}", refused: "not valid UTF-8", schemaBlind: true},
	{name: "a voucher with half a surrogate pair", schema: "voucher", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V\ud800"}`, refused: "voucherId: must be valid Unicode", schemaBlind: true},
	{name: "null", schema: "voucher", payload: `null`, refused: "promotionId: must be > 0"},
	{name: "one mebibyte", schema: "voucher", payload: `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"v","x":"` + strings.Repeat("x", 1<<20) + `"}`, refused: "bytes, at most", schemaBlind: true},
	{name: "started", schema: "started", payload: `{"promotionId":12345,"promotionType":"POINT","totalCount":1000000}`},
	{name: "started without a count", schema: "started", payload: `{"promotionId":12345,"promotionType":"VOUCHER"}`},
	{name: "started with a negative count", schema: "started", payload: `{"promotionId":1,"promotionType":"POINT","totalCount":-1}`, refused: "totalCount: must be >= 0"},
	{name: "started without an id", schema: "started", payload: `{"promotionType":"POINT"}`, refused: "promotionId: must be > 0"},
}

func decodeAs(schema string, payload []byte) error {
	if schema == "started" {
		return pipeline.Decode(payload, new(Started)) // as the route does
	}
	t, _ := ByName(strings.ToUpper(schema))
	_, err := t.Decode(payload)
	return err
}

func TestRecords(t *testing.T) {
	t.Parallel()
	for _, tt := range records {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := decodeAs(tt.schema, []byte(tt.payload))
			if tt.refused == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.refused)
			require.True(t, pipeline.IsPermanent(err), "a record that can't be decoded is never retried")
		})
	}
}

func TestSchemasSayWhatTheDecoderSays(t *testing.T) {
	t.Parallel()
	for _, tt := range records {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(tt.payload))
			if err != nil {
				require.NotEmpty(t, tt.refused)
				return
			}
			err = compileSchema(t, tt.schema).Validate(doc)
			if tt.refused == "" || tt.schemaBlind {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
			}
		})
	}
}

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	text := StartedSchema()
	if of, known := ByName(strings.ToUpper(name)); known {
		text = of.RecordSchema()
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource(name, doc))
	s, err := c.Compile(name)
	require.NoError(t, err)
	return s
}

func TestTheSameRequestOnEveryAttempt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Int64Range(1, math.MaxInt64)
		s := rapid.SampledFrom(All()).Draw(t, "type")
		value := s.Sample(rapid.IntRange(1, 10_000).Draw(t, "sample"))
		switch s.Name {
		case "POINT":
			value = rapid.StringMatching(`[1-9][0-9]{0,17}`).Draw(t, "amount")
		case "VOUCHER":
			value = rapid.StringMatching(`.{1,64}`).Draw(t, "voucher")
		}
		fresh, err := s.Encode(id.Draw(t, "promotion"), id.Draw(t, "summary"), id.Draw(t, "target"), value)
		if err != nil {
			t.Skip(err)
		}
		retried, err := WithRetryCount(fresh, rapid.IntRange(1, 5).Draw(t, "n"))
		require.NoError(t, err)
		a, err := s.Decode(fresh)
		require.NoError(t, err)
		b, err := s.Decode(retried)
		require.NoError(t, err)
		require.Equal(t, a, b)
	})
}

func TestRetryCountKeepsEverythingElse(t *testing.T) {
	t.Parallel()
	got, err := WithRetryCount([]byte(`{"promotionId":9223372036854775807,"note":"as it came","retryCount":1}`), 2)
	require.NoError(t, err)
	require.JSONEq(t, `{"promotionId":9223372036854775807,"note":"as it came","retryCount":2}`, string(got))
	for _, bad := range []string{`null`, `[`, ``} {
		_, err := WithRetryCount([]byte(bad), 1)
		require.Error(t, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range records {
		if len(r.payload) < 1000 {
			f.Add([]byte(r.payload))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, s := range All() {
			p, err := s.Decode(payload)
			if err != nil {
				require.True(t, pipeline.IsPermanent(err))
				continue
			}
			require.Positive(t, p.Promotion)
			require.Positive(t, p.Target)
			require.Positive(t, p.Summary)
			require.Equal(t, s.IsAmount, s.MinorUnits(p.Value) > 0, "an amount is > 0")
			require.NotEmpty(t, p.Value)
			require.True(t, json.Valid(p.Request))
			again, err := s.Decode(p.Request)
			require.NoError(t, err)
			require.Equal(t, p, again, "what is sent means what came")
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	s, ok := ByName("VOUCHER")
	require.True(t, ok)
	require.Equal(t, "campaign-promotion-voucher-publish", s.PublishTopic())
	require.Equal(t, "campaign-promotion-voucher-retry", s.RetryTopic())
	require.Equal(t, "campaign-promotion-voucher-dead", s.DeadTopic())
	require.Equal(t, "prepay-admin-campaign-voucher", s.Group())
	require.Equal(t, "prepay-admin-campaign-voucher-retry", s.RetryGroup())
	require.Equal(t, "campaign-promotion-stream:VOUCHER:12345", s.StreamPrefix()+"12345")
	require.Equal(t, "campaign-promotion-group:VOUCHER:12345", s.GroupPrefix()+"12345")
	require.Equal(t, "VOUCHER:12345:777", s.IdempotencyKey(12345, 777))
	_, ok = ByName("voucher")
	require.False(t, ok, "types are upper case")
}

// A record of each type keeps the schema. Decoder and schema refuse it without one of its fields.
func TestSchemasOfAllTypes(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		payload, err := s.Encode(1, 9, 7, s.Sample(1))
		require.NoError(t, err)
		var fields map[string]any
		require.NoError(t, json.Unmarshal(payload, &fields))
		schema := compileSchema(t, strings.ToLower(s.Name))
		require.NoError(t, schema.Validate(fields))
		for name, value := range fields {
			delete(fields, name)
			require.Error(t, schema.Validate(fields), name)
			payload, err := json.Marshal(fields)
			require.NoError(t, err)
			_, err = s.Decode(payload)
			require.Error(t, err, name)
			fields[name] = value
		}
	}
}

// Types share no name and no operation: keys, topics and calls distinguish them.
func TestTypesAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range All() {
		require.Regexp(t, `^[A-Z][A-Z0-9_]*$`, s.Name)
		for _, own := range []string{s.Name, s.Operation.Name, s.Operation.Path} {
			require.False(t, seen[own], "%s is of two types", own)
			seen[own] = true
		}
		require.Contains(t, Columns(), s.Column)
	}
}

func TestRequestsAreComparedByMeaning(t *testing.T) {
	t.Parallel()
	const point, voucher = `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500}`, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V&1"}`
	for _, tt := range []struct {
		name            string
		stored, offered string
		same            bool
	}{
		{"POINT", point, point, true},
		{"POINT", `{"amount":500,"targetId":7,"promotionSummaryId":9,"promotionId":1}`, point, true},
		{"POINT", `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"currency":"EUR"}`, point, true},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":501}`, false},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":8,"targetId":7,"amount":500}`, false},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":9,"targetId":8,"amount":500}`, false},
		{"POINT", point, `{"promotionId":2,"promotionSummaryId":9,"targetId":7,"amount":500}`, false},
		{"POINT", `no JSON`, point, false},
		{"VOUCHER", `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V\u00261"}`, voucher, true},
		{"VOUCHER", voucher, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V&2"}`, false},
		{"COIN", point, point + " ", false},
	} {
		require.Equal(t, tt.same, SameRequest(tt.name, []byte(tt.stored), []byte(tt.offered)), "%s and %s", tt.stored, tt.offered)
		require.Equal(t, tt.same, SameRequest(tt.name, []byte(tt.offered), []byte(tt.stored)))
	}
}
