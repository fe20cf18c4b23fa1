package configs_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/configs"
)

func shopSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s := defaults()
	s.Password = hidden{"s3cret"}
	s.Stream.PollInterval = 5 * time.Minute
	text, err := configs.Schema("millrace", []string{"local"}, map[string]any{
		"":             &struct{ Environment string }{"external"},
		"plugins.shop": s,
	})
	require.NoError(t, err)
	require.NotContains(t, string(text), "s3cret")
	require.NotContains(t, string(text), "redacted", "which would be a default that nobody should copy")
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", doc))
	compiled, err := c.Compile("schema.json")
	require.NoError(t, err)
	return compiled
}

func TestSchemaShowsDefaults(t *testing.T) {
	t.Parallel()
	s := defaults()
	s.Stream.PollInterval = 5 * time.Minute
	text, err := configs.Schema("millrace", nil, map[string]any{"plugins.shop": s})
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(text, &got))
	at := func(names ...string) any {
		var v any = got
		for _, n := range names {
			v = v.(map[string]any)["properties"].(map[string]any)[n]
		}
		return v.(map[string]any)["default"]
	}
	require.Equal(t, "5m", at("plugins", "shop", "stream", "poll_interval"))
	require.InDelta(t, 100, at("plugins", "shop", "stream", "max_len"), 0)
	require.Equal(t, []any{"localhost:9092"}, at("plugins", "shop", "brokers"))
	require.Nil(t, at("plugins", "shop", "password"))
	again, err := configs.Schema("millrace", nil, map[string]any{"plugins.shop": s})
	require.NoError(t, err)
	require.Equal(t, string(text), string(again), "the same structs make the same text")
}

// TestSchemaAgreesWithTheLoader: what the schema accepts decodes, and what it refuses doesn't.
func TestSchemaAgreesWithTheLoader(t *testing.T) {
	t.Parallel()
	schema := shopSchema(t)
	for text, good := range map[string]bool{
		"":                      true,
		"profile: local":        true,
		"plugins:":              true,
		"plugins: {shop: }":     true,
		"environment: embedded": true,
		"hom: embedded":         false,
		"plugins: {shp: {}}":    false,
		"plugins: {shop: 5}":    false,
		"plugins: {shop: []}":   false,
		"profile: nowhere":      false,
		"plugins: {shop: {brokers: [a, 1], stream: {enabled: true, max_len: 5, poll_interval: 1h5m, share: 2}}}": true,
		"plugins: {shop: {stream: {poll_interval: 0, share: 0.5}}}":                                              true,
		"plugins: {shop: {stream: {poll_interval: 5}}}":                                                          false,
		"plugins: {shop: {stream: {poll_interval: 5 s}}}":                                                        false,
		"plugins: {shop: {stream: {max_len: 1.5}}}":                                                              false,
		"plugins: {shop: {stream: {max_len: '1'}}}":                                                              false,
		"plugins: {shop: {stream: {enabled: 1}}}":                                                                false,
		"plugins: {shop: {brokers: a}}":                                                                          false,
		"plugins: {shop: {redis: {brokers: [a]}, password: env:X, level: info}}":                                 true,
		"plugins: {shop: {password: [a]}}":                                                                       false,
		"plugins: {shop: {tiers: [{up_to: 1, slots: 2}], limits: {a: {up_to: 3}}, labels: {x: y}}}":              true,
		"plugins: {shop: {tiers: [{up_to: -1}]}}":                                                                false,
		"plugins: {shop: {limits: {a: {up: 3}}}}":                                                                false,
		"plugins: {shop: {free: [1, {a: b}]}}":                                                                   true,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			var doc any
			require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
			if doc == nil {
				doc = map[string]any{}
			}
			asJSON, err := json.Marshal(doc)
			require.NoError(t, err)
			doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
			require.NoError(t, err)
			require.Equal(t, good, schema.Validate(doc) == nil, "schema: %v", schema.Validate(doc))

			d, err := configs.Load(ours(configs.Options{File: write(t, text)}))
			if err == nil {
				var top struct{ Environment string }
				err = d.Decode("", &top)
				if err == nil {
					err = d.Decode("plugins.shop", defaults())
				}
				if err == nil {
					err = d.Unclaimed()
				}
			}
			require.Equal(t, good, err == nil, "loader: %v", err)
		})
	}
}

func TestSchemaRefusesWhatCannotBeSet(t *testing.T) {
	t.Parallel()
	_, err := configs.Schema("millrace", []string{"local"}, map[string]any{"a": shop{}})
	require.ErrorContains(t, err, "expected a pointer to a struct")
	_, err = configs.Schema("millrace", nil, map[string]any{"a": &struct{ F func() }{}})
	require.EqualError(t, err, "schema: a.f has type func(), which can't be set")
	_, err = configs.Schema("millrace", nil, map[string]any{"": &struct{ Plugins int }{}, "plugins": &struct{ A int }{}, "plugins.a": &struct{ B int }{}})
	require.EqualError(t, err, "schema: plugins is described twice")
	_, err = configs.Schema("millrace", nil, map[string]any{"": &struct{ A int }{}, "a": &struct{ B int }{}, "a.b": &struct{ C int }{}})
	require.EqualError(t, err, "schema: a is described twice")
}

type knot struct {
	Next *knot `yaml:"next"`
	Name string
}

func TestATypeThatHoldsItselfEnds(t *testing.T) {
	t.Parallel()
	_, err := configs.Schema("millrace", nil, map[string]any{"a": &knot{}})
	require.NoError(t, err)
	d := load(t, configs.Options{File: write(t, "a: {next: {next: {nxt: 1}}}\n")})
	require.ErrorContains(t, d.Decode("a", &knot{}), `did you mean "next"?`)
}

func FuzzLoad(f *testing.F) {
	for _, name := range configs.Profiles(os.DirFS("profiles")) {
		text, err := os.ReadFile("profiles/" + name + ".yaml")
		require.NoError(f, err)
		f.Add(text, "KAFKA__BROKERS", "a,b")
	}
	f.Add([]byte("plugins: {shop: &a {brokers: [*a], tiers: [{up_to: 1}], stream: {max_len: 1e3}}}"), "SHOP__STREAM__SHARE", ".5")
	f.Add([]byte("a: [1\n---\n\t"), "SHOP__TIERS", "{")
	f.Add([]byte("? [a]\n: !!binary x\n2020-01-01: !!set {b}\n"), "", "")
	f.Fuzz(func(t *testing.T, text []byte, key, value string) {
		file := write(t, string(text))
		lines := bytes.Count(text, []byte("\n")) + 1 + bytes.Count(text, []byte("\r"))
		check := func(err error) {
			for _, e := range configs.Flatten(err) {
				require.NotEmpty(t, e.Problem)
				require.NotEmpty(t, e.File, "a mistake of a layer says where it is: %v", e)
				require.LessOrEqual(t, e.Line, lines, "%v", e)
			}
		}
		d, err := configs.Load(ours(configs.Options{File: file, Environ: []string{"MILLRACE__PLUGINS__" + key + "=" + value}}))
		check(err)
		if err != nil {
			return
		}
		check(d.Decode("", &struct{ Environment string }{}))
		check(d.Decode("plugins.shop", defaults()))
		check(d.Unclaimed())
	})
}
