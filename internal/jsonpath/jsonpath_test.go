package jsonpath_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/jsonpath"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"id", "order.id", "lines.0.id", "a b.c"} {
		p, err := jsonpath.Parse(text)
		require.NoError(t, err)
		require.Equal(t, text, p.String())
	}
	for _, text := range []string{"", ".", "order.", ".id", "order..id"} {
		_, err := jsonpath.Parse(text)
		require.EqualError(t, err, "must be a path such as order.id, in which each part has a character, got "+strconv.Quote(text))
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	const document = ` {"id": 17, "order": {"id": "a", "lines": [{"sku": "x"}, null]}, "none": null, "twice": 1, "twice": 2} `
	for path, want := range map[string]string{
		"id": "17", "order.id": `"a"`, "order.lines.0.sku": `"x"`, "order.lines.1": "null", "none": "null", "order.lines.0": `{"sku": "x"}`, "twice": "2",
		"ID": "", "id.x": "", "none.x": "", "order.lines.2": "", "order.lines.-1": "", "order.lines.x": "", "order.lines.1.x": "", "order.id.0": "",
	} {
		p, err := jsonpath.Parse(path)
		require.NoError(t, err)
		value, found := p.Find(json.RawMessage(document))
		require.Equal(t, want != "", found, path)
		require.Equal(t, want, string(value), path)
	}
	whole, found := jsonpath.Path(nil).Find(json.RawMessage(document))
	require.True(t, found)
	require.JSONEq(t, document, string(whole))
	_, found = jsonpath.Path{"id"}.Find(nil)
	require.False(t, found)
}

// Find returns what decoding of the whole document and steps through its values return.
func FuzzFind(f *testing.F) {
	for _, document := range []string{`{"a":{"b":[1,{"c":"x"}]}}`, `[[],{"a":null}]`, `{"":1,"a":{"":2}}`, `"a"`, " 7\n", `{"a":1,"a":{"b":"\ud800"}}`} {
		for _, path := range []string{"a", "a.b", "a.b.1.c", "0", "1.a", "a.b.01", "a.b.+1"} {
			f.Add(document, path)
		}
	}
	f.Fuzz(func(t *testing.T, document, path string) {
		p, err := jsonpath.Parse(path)
		var want any
		if err != nil || json.Unmarshal([]byte(document), &want) != nil {
			return
		}
		value, found := p.Find(json.RawMessage(document))
		want, there := step(want, p)
		require.Equal(t, there, found)
		if found {
			var got any
			require.NoError(t, json.Unmarshal(value, &got))
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(got))
		}
	})
}

func step(v any, path jsonpath.Path) (any, bool) {
	for _, name := range path {
		switch at := v.(type) {
		case map[string]any:
			next, there := at[name]
			if !there {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(at) {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}
