package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/console"
)

// compared returns what is said of each row.
func compared(t *testing.T, r *rig) map[string][3]any {
	t.Helper()
	found := map[string][3]any{}
	for _, row := range rowsOf(t, r.panels("tried")["both"].Value) {
		name := fmt.Sprint(row["field"])
		require.NotContains(t, found, name)
		found[name] = [3]any{row["compared"], row["first"], row["second"]}
	}
	return found
}

func comparison(a, b pages.Record) contributor {
	return page(loading("both", pages.Comparison{Titles: [2]string{"First", "Second"}, Sides: [2]pages.Record{a, b}}, nil))
}

func payloads(a, b []byte) contributor {
	return comparison(pages.Record{Folds: []pages.Fold{{Title: "Payload", Payload: a}}}, pages.Record{Folds: []pages.Fold{{Title: "Payload", Payload: b}}})
}

// What differs of two things is said in words, also of values that are masked, and foreign content stays text.
func TestTwoThingsSideBySide(t *testing.T) {
	t.Parallel()
	side := func(attempts int, token, header, payload, text string, only string) pages.Record {
		return pages.Record{
			Fields: pages.Stats{{Name: "Route", Cell: pages.Word("<b>take</b>")}, {Name: "Attempts", Cell: pages.Count(attempts)}, {Name: "Token", Cell: pages.Word(token)}, {Name: only, Cell: pages.Word("x")}},
			Folds: []pages.Fold{
				{Title: "Headers", Headers: map[string]string{"Cookie": header, "own": "<i>", "x-" + only: "y"}},
				{Title: "Payload", Payload: []byte(payload)}, {Title: "Text", Text: text},
			},
		}
	}
	r := start(t, nil, comparison(
		side(1, "hunter2-a", "hunter2-b", `{"n":1152921504606846976,"secret":"hunter2-c","email":{"a":"hunter2-d"},"list":[{"name":"<img src=x>"},5],"body":"{\"token\":\"hunter2-e\"}","gone":null}`, `said {"phone": "hunter2-f"}`, "One"),
		side(2, "hunter2-z", "hunter2-b", `{"n":1152921504606846977,"secret":"hunter2-z","email":{"a":"hunter2-d"},"list":[{"name":"<img src=x>"},5,"6"],"body":"{\"token\":\"hunter2-z\"}"}`, `said {"phone": "hunter2-z"}`, "Other"),
	))
	require.Equal(t, map[string][3]any{
		"Route":                {"same", "<b>take</b>", "<b>take</b>"},
		"Attempts":             {"differs", 1.0, 2.0},
		"Token":                {"differs", "[masked]", "[masked]"},
		"One":                  {"differs", "x", nil},
		"Other":                {"differs", nil, "x"},
		"Headers Cookie":       {"same", "[masked]", "[masked]"},
		"Headers own":          {"same", "<i>", "<i>"},
		"Headers x-One":        {"differs", "y", nil},
		"Headers x-Other":      {"differs", nil, "y"},
		"Payload":              {"differs", "153 bytes", "145 bytes"},
		"Payload n":            {"differs", "1152921504606846976", "1152921504606846977"},
		"Payload secret":       {"differs", "[masked]", "[masked]"},
		"Payload email":        {"same", "[masked]", "[masked]"},
		"Payload list[0].name": {"same", `"<img src=x>"`, `"<img src=x>"`},
		"Payload list[1]":      {"same", "5", "5"},
		"Payload list[2]":      {"differs", nil, `"6"`},
		"Payload body":         {"differs", `"{\"token\":\"[masked]\"}"`, `"{\"token\":\"[masked]\"}"`},
		"Payload gone":         {"differs", "null", nil},
		"Text":                 {"differs", `said {"phone": "[masked]"}`, `said {"phone": "[masked]"}`},
	}, compared(t, r))
	text := r.get("/tried")
	require.NotContains(t, text, "hunter2")
	require.NotContains(t, text, "<img")
	require.Contains(t, text, "<th scope=\"col\">Compared</th><th scope=\"col\">First</th><th scope=\"col\">Second</th>")
	require.Contains(t, text, "<td>Headers x-One</td><td>differs</td><td>y</td><td>absent</td>")
	require.Contains(t, text, "13 of 19 rows differ.")
	_, text = r.do(http.MethodGet, "/tried", "", "Accept: text/plain; columns=200")
	require.Contains(t, text, "13 of 19 rows differ.")
	require.NotContains(t, text, "hunter2")

	bare := start(t, func(c *console.Config) { c.MaskedFields = nil }, payloads([]byte(`["hunter2",{"secret":1}]`), []byte(`["hunter2",{"secret":2}]`)))
	require.Equal(t, map[string][3]any{"Payload": {"differs", "24 bytes", "24 bytes"}, "Payload [0]": {"same", `"hunter2"`, `"hunter2"`}, "Payload [1].secret": {"differs", "1", "2"}}, compared(t, bare))
}

func TestPayloadsSideBySide(t *testing.T) {
	t.Parallel()
	deep := func(inner string) string { return strings.Repeat(`{"a":`, 40) + inner + strings.Repeat("}", 40) }
	many := func(first int) []byte {
		members := make([]string, 600)
		for i := range members {
			members[i] = fmt.Sprintf(`"m%03d":%d`, i, first+i)
		}
		return []byte("{" + strings.Join(members, ",") + "}")
	}
	for name, c := range map[string]struct {
		a, b []byte
		want map[string][3]any
	}{
		"no JSON":           {[]byte("hunter2"), []byte("hunter3"), map[string][3]any{"Payload": {"differs", "7 bytes, which are hidden because only JSON has fields that can be masked", "7 bytes, which are hidden because only JSON has fields that can be masked"}}},
		"none":              {nil, []byte(`{}`), map[string][3]any{"Payload": {"differs", nil, "{}"}}},
		"empty":             {[]byte(`{}`), []byte(`{}`), map[string][3]any{"Payload": {"same", "2 bytes", "2 bytes"}}},
		"unnamed":           {[]byte(`["hunter2",null]`), []byte(`["hunter3",null]`), map[string][3]any{"Payload": {"differs", "16 bytes", "16 bytes"}, "Payload [0]": {"differs", `"[masked]"`, `"[masked]"`}, "Payload [1]": {"same", "null", "null"}}},
		"a name that twice": {[]byte(`{"a":1,"a":2}`), []byte(`{"a":2}`), map[string][3]any{"Payload": {"differs", "13 bytes", "7 bytes"}, "Payload a": {"same", "2", "2"}}},
		"two values":        {[]byte(`{} {}`), []byte(`{}`), nil},
		"list and object":   {[]byte(`[]`), []byte(`{"secret":"hunter2"}`), map[string][3]any{"Payload": {"differs", "2 bytes", "20 bytes"}, "Payload content": {"differs", `[]`, `{"secret":"[masked]"}`}}},
		"deep":              {[]byte(deep(`{"secret":"hunter2"}`)), []byte(deep(`{"secret":"hunter3"}`)), nil},
		"long names":        {[]byte(`{"` + strings.Repeat("x", 1<<20) + `":{"secret":"hunter2"}}`), []byte(`{}`), nil},
		"many":              {many(0), many(1), nil},
	} {
		r := start(t, nil, payloads(c.a, c.b))
		found := compared(t, r)
		require.NotEmpty(t, found, name)
		if c.want != nil {
			require.Equal(t, c.want, found, name)
		}
		text := r.get("/tried")
		require.NotContains(t, text, "hunter", name)
		if name == "many" {
			require.Len(t, found, 501)
			require.Contains(t, text, "501 of 501 rows differ. Only the first 500 members of the payloads are compared one by one.")
		}
	}
}
