package configs_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
)

// hidden behaves like setting.Secret, which this package can't import.
type hidden struct{ value string }

func (h hidden) Reveal() string               { return h.value }
func (h hidden) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }
func (h *hidden) UnmarshalText(text []byte) error {
	if string(text) == "env:UNSET" {
		return errors.New("environment variable UNSET is not set")
	}
	h.value = string(text)
	return nil
}

type stream struct {
	Enabled      bool          `yaml:"enabled"`
	MaxLen       int           `yaml:"max_len"`
	PollInterval time.Duration `yaml:"poll_interval"`
	Share        float64       `yaml:"share"`
}

type tier struct {
	UpTo  uint16 `yaml:"up_to"`
	Slots int8   `yaml:"slots"`
}

type shared struct {
	Brokers []string `yaml:"brokers"`
}

type shop struct {
	Shared   shared            `yaml:",inline"`
	Stream   stream            `yaml:"stream"`
	Redis    *shared           `yaml:"redis"`
	Password hidden            `yaml:"password"`
	Level    slog.Level        `yaml:"level"`
	Tiers    []tier            `yaml:"tiers"`
	Labels   map[string]string `yaml:"labels"`
	Limits   map[string]tier   `yaml:"limits"`
	Free     any               `yaml:"free"`
	Ignored  func()            `yaml:"-"`
	own      int               //nolint:unused // a field that is no setting
}

func defaults() *shop {
	return &shop{
		Shared: shared{Brokers: []string{"localhost:9092"}},
		Stream: stream{MaxLen: 100, PollInterval: 100 * time.Millisecond},
		Tiers:  []tier{{UpTo: 100, Slots: 1}, {UpTo: 1000, Slots: 2}},
		Labels: map[string]string{"team": "pay"},
		Limits: map[string]tier{"small": {UpTo: 10, Slots: 1}},
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// ours completes options with the profiles and the prefix of millrace.
func ours(o configs.Options) configs.Options {
	o.Profiles, o.EnvPrefix = os.DirFS("profiles"), "MILLRACE"
	return o
}

func load(t *testing.T, o configs.Options) *configs.Document {
	t.Helper()
	d, err := configs.Load(ours(o))
	require.NoError(t, err)
	return d
}

// problems returns the lines of err, with the folder of the test's file cut off.
func problems(err error) []string {
	var out []string
	for _, e := range configs.Flatten(err) {
		line := e.Error()
		if e.File != "" {
			line = strings.ReplaceAll(line, e.File, filepath.Base(e.File))
		}
		out = append(out, line)
	}
	return out
}

func TestLayersWinInOrder(t *testing.T) {
	t.Parallel()
	const path = "plugins.promotion.stream.max_consumers_per_instance"
	type section struct {
		Slots int `yaml:"max_consumers_per_instance"`
		Max   int `yaml:"max_len"`
		Rest  any `yaml:"enabled"`
	}
	file := write(t, "profile: local\nplugins: {promotion: {stream: {max_consumers_per_instance: 5}}}\n")
	bare := write(t, "profile: local\n")
	env := []string{"MILLRACE__PLUGINS__PROMOTION__STREAM__MAX_CONSUMERS_PER_INSTANCE=6", "HOME=/"}
	for name, tc := range map[string]struct {
		o     configs.Options
		slots int
		file  string
	}{
		"default":  {configs.Options{}, 32, ""},
		"profile":  {configs.Options{File: bare}, 4, "profile local"},
		"file":     {configs.Options{File: file}, 5, file},
		"environ":  {configs.Options{File: file, Environ: env}, 6, "environment variable MILLRACE__PLUGINS__PROMOTION__STREAM__MAX_CONSUMERS_PER_INSTANCE"},
		"override": {configs.Options{File: file, Environ: env, Overrides: map[string]any{path: 7}}, 7, "override"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := load(t, tc.o)
			s := section{Slots: 32, Max: 100_000}
			_ = d.Decode("plugins.promotion.stream", &s)
			require.Equal(t, tc.slots, s.Slots)
			require.Equal(t, 100_000, s.Max, "what no layer names keeps its default")
			at, _ := d.Position(path)
			require.Equal(t, tc.file, at)
		})
	}
}

func TestAnEmptyValueChangesNothing(t *testing.T) {
	t.Parallel()
	file := write(t, "profile: local\nplugins:\n  kafka:\n    brokers:\n  redis:\n")
	d := load(t, configs.Options{File: file, Overrides: map[string]any{"plugins.kafka": nil}})
	s := shared{Brokers: []string{"default"}}
	require.NoError(t, d.Decode("plugins.kafka", &s))
	require.Equal(t, []string{"127.0.0.1:19092"}, s.Brokers, "the profile's")
	s = shared{Brokers: []string{"default"}}
	d = load(t, configs.Options{File: write(t, "plugins: {kafka: {brokers: }}\n")})
	require.NoError(t, d.Decode("plugins.kafka", &s))
	require.Equal(t, []string{"default"}, s.Brokers)
	d = load(t, configs.Options{File: write(t, "plugins: {kafka: {brokrs: }}\n")})
	require.Error(t, d.Decode("plugins.kafka", &s), "but its key must be known")
}

func TestProfileIsChosenByFlagThenEnvironmentThenFile(t *testing.T) {
	t.Parallel()
	file := write(t, "profile: staging\n")
	env := []string{"MILLRACE__PROFILE=dev"}
	for name, tc := range map[string]struct {
		o    configs.Options
		want string
	}{
		"nothing":                    {configs.Options{}, ""},
		"default":                    {configs.Options{DefaultProfile: "embedded"}, "embedded"},
		"default is not for a file":  {configs.Options{DefaultProfile: "embedded", File: write(t, "environment: external\n")}, ""},
		"file":                       {configs.Options{DefaultProfile: "embedded", File: file}, "staging"},
		"environment over file":      {configs.Options{File: file, Environ: env}, "dev"},
		"flag over both":             {configs.Options{File: file, Environ: env, Profile: "local"}, "local"},
		"environment over a default": {configs.Options{DefaultProfile: "embedded", Environ: env}, "dev"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, load(t, tc.o).Profile())
		})
	}
}

func TestDecodeReadsEveryType(t *testing.T) {
	t.Parallel()
	file := write(t, `
plugins:
  shop:
    brokers: [a:1, b:2]
    stream: {enabled: true, max_len: 1_000, share: 1}
    redis: {brokers: [r:1]}
    password: 0123
    level: debug
    tiers: [{up_to: 5}]
    labels: {zone: 7}
    limits: {small: {slots: 3}, big: {up_to: 9}}
    free: {a: [1, x]}
`)
	s := defaults()
	brokers, labels := s.Shared.Brokers, s.Labels
	require.NoError(t, load(t, configs.Options{File: file}).Decode("plugins.shop", s))
	want := &shop{
		Shared:   shared{Brokers: []string{"a:1", "b:2"}},
		Stream:   stream{Enabled: true, MaxLen: 1000, PollInterval: 100 * time.Millisecond, Share: 1},
		Redis:    &shared{Brokers: []string{"r:1"}},
		Password: hidden{"0123"},
		Level:    slog.LevelDebug,
		Tiers:    []tier{{UpTo: 5}}, // replaced: nothing of the default tier shows through
		Labels:   map[string]string{"team": "pay", "zone": "7"},
		Limits:   map[string]tier{"small": {UpTo: 10, Slots: 3}, "big": {UpTo: 9}},
		Free:     map[string]any{"a": []any{1, "x"}},
	}
	require.Equal(t, want, s)
	require.Equal(t, []string{"localhost:9092"}, brokers, "the default list is not written to")
	require.Equal(t, map[string]string{"team": "pay"}, labels, "the default map is not written to")
}

// client has defaults although it is optional.
type client struct {
	Addr    string        `yaml:"addr"`
	Timeout time.Duration `yaml:"timeout"`
}

func (c *client) SetDefaults() { *c = client{"localhost", time.Second} }

func TestWhatIsOptionalBringsItsDefaults(t *testing.T) {
	t.Parallel()
	type section struct {
		Own  *client           `yaml:"own"`
		Not  *client           `yaml:"not"`
		List []client          `yaml:"list"`
		Map  map[string]client `yaml:"map"`
	}
	var s section
	file := write(t, "a: {own: {addr: x}, list: [{timeout: 2s}, {addr: y}], map: {z: {addr: z}}}\n")
	require.NoError(t, load(t, configs.Options{File: file}).Decode("a", &s))
	require.Equal(t, section{
		Own:  &client{"x", time.Second},
		List: []client{{"localhost", 2 * time.Second}, {"y", time.Second}},
		Map:  map[string]client{"z": {"z", time.Second}},
	}, s)
	schema, err := configs.Schema("shop", nil, map[string]any{"a": &section{}})
	require.NoError(t, err)
	require.Equal(t, 4, strings.Count(string(schema), `"default": "localhost"`))
}

func TestEnvironmentReadsEveryType(t *testing.T) {
	t.Parallel()
	s := defaults()
	d := load(t, configs.Options{Environ: []string{
		"MILLRACE__PLUGINS__SHOP__BROKERS=a:1, b:2,",
		"MILLRACE__PLUGINS__SHOP__STREAM__ENABLED=true",
		"MILLRACE__PLUGINS__SHOP__STREAM__MAX_LEN=7",
		"MILLRACE__PLUGINS__SHOP__STREAM__POLL_INTERVAL=5s",
		"MILLRACE__PLUGINS__SHOP__PASSWORD=a=b,c",
		"MILLRACE__PLUGINS__SHOP__LABELS__TEAM=",
	}})
	require.NoError(t, d.Decode("plugins.shop", s))
	require.Equal(t, []string{"a:1", "b:2"}, s.Shared.Brokers)
	require.Equal(t, stream{Enabled: true, MaxLen: 7, PollInterval: 5 * time.Second}, s.Stream)
	require.Equal(t, "a=b,c", s.Password.value)
	require.Equal(t, map[string]string{"team": ""}, s.Labels)
}

func TestOverridesAreGoValues(t *testing.T) {
	t.Parallel()
	s := defaults()
	d := load(t, configs.Options{Overrides: map[string]any{
		"plugins.shop.brokers":              []string{"k:1"},
		"plugins.shop.stream":               map[string]any{"max_len": 5, "share": 0.5},
		"plugins.shop.stream.poll_interval": time.Minute,
		"plugins.shop.password":             hidden{"s3cret"},
		"plugins.shop.level":                slog.LevelWarn,
		"plugins.shop.redis":                nil,
	}})
	require.NoError(t, d.Decode("plugins.shop", s))
	require.Equal(t, []string{"k:1"}, s.Shared.Brokers)
	require.Equal(t, stream{MaxLen: 5, Share: 0.5, PollInterval: time.Minute}, s.Stream)
	require.Equal(t, "s3cret", s.Password.value)
	require.Equal(t, slog.LevelWarn, s.Level)
	require.Nil(t, s.Redis)

	s = defaults()
	d = load(t, configs.Options{Overrides: map[string]any{
		"plugins.shop.labels": map[string]hidden{"key": {"s3cret"}},
		"plugins.shop.free":   map[string]any{"a": []any{hidden{"s3cret"}, map[string]any{"b": hidden{"5"}}}},
		"plugins.shop.stream": map[string]any{"max_len": hidden{"77"}},
		"plugins.shop.tiers":  []any{hidden{"s3cret"}},
	}})
	require.EqualError(t, d.Decode("plugins.shop", s), strings.Join([]string{
		"override: plugins.shop.tiers[0]: expected a section, got a secret",
		"override: plugins.shop.stream.max_len: expected a whole number, got a secret",
	}, "\n"), "secrets are not shown")
	require.Equal(t, "s3cret", s.Labels["key"])
	require.Equal(t, map[string]any{"a": []any{"s3cret", map[string]any{"b": "5"}}}, s.Free)

	_, err := configs.Load(ours(configs.Options{Overrides: map[string]any{"a..b": 1, "c": make(chan int)}}))
	require.Equal(t, []string{
		`override: c: expected a value that can be written in a settings file: cannot marshal type: chan int`,
		`override: a..b: expected a dotted path, got "a..b"`,
	}, problems(err))
}

func TestLoadReportsBrokenFiles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"syntax":        {"a: 1\nb: [1\n", []string{"settings.yaml:2: not valid YAML: did not find expected ',' or ']'"}},
		"indent":        {"a:\n  b: 1\n c: 2\n", []string{"settings.yaml:3: not valid YAML: did not find expected key"}},
		"tab":           {"a:\n\tb: 1\n", []string{"settings.yaml:2: not valid YAML: found character that cannot start any token"}},
		"first line":    {"a: [1", []string{"settings.yaml:1: not valid YAML: did not find expected ',' or ']'"}},
		"no section":    {"- a\n", []string{"settings.yaml:1: expected a section of keys and values, got a list"}},
		"set twice":     {"a: 1\nb: {c: 1,\n c: 2}\na: 2\n", []string{"settings.yaml:3: b.c: set twice, first in line 2", "settings.yaml:4: a: set twice, first in line 1"}},
		"two documents": {"a: 1\n---\nb: 1\n", []string{"settings.yaml:2: expected one YAML document, got another one"}},
		"merge key":     {"a: &x {b: 1}\nc: {<<: *x}\n", []string{"settings.yaml:2: c.<<: merge keys are not supported: write the settings out"}},
		"odd key":       {"? [a]\n: 1\n", []string{"settings.yaml:1: expected a word as key"}},
		"profile":       {"\nprofile: prodution\n", []string{`settings.yaml:2: profile: no profile has the name "prodution"; did you mean "production"?`}},
		"far profile":   {"profile: xyz\n", []string{`settings.yaml:1: profile: no profile has the name "xyz"; there are broker, dev, dispatcher, embedded, gateway, local, production, router, staging`}},
		"profile list":  {"profile: [a]\n", []string{"settings.yaml:1: profile: expected a profile's name, got a list"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := configs.Load(ours(configs.Options{File: write(t, tc.text)}))
			require.Equal(t, tc.want, problems(err))
		})
	}
	t.Run("absent, with others", func(t *testing.T) {
		t.Parallel()
		_, err := configs.Load(ours(configs.Options{File: "no-such.yaml", Profile: "x", Environ: []string{"MILLRACE__A____B=1"}}))
		require.Equal(t, []string{
			"no-such.yaml: can't be read: no such file or directory",
			"environment variable MILLRACE__A____B: expected MILLRACE__SECTION__KEY",
			`profile: no profile has the name "x"; there are broker, dev, dispatcher, embedded, gateway, local, production, router, staging`,
		}, problems(err))
	})
	t.Run("alias bomb", func(t *testing.T) {
		t.Parallel()
		// A little over the limit: without it the test fails at once, instead of filling the
		// machine's memory.
		text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
		for i := range 4 {
			_, err := configs.Load(ours(configs.Options{File: write(t, text)}))
			require.NoError(t, err, "%d levels", i)
			was, is := string(rune('0'+i)), string(rune('1'+i))
			text += "a" + is + ": &a" + is + " [" + strings.Repeat("*a"+was+", ", 9) + "*a" + was + "]\n"
		}
		_, err := configs.Load(ours(configs.Options{File: write(t, text)}))
		require.ErrorContains(t, err, "too many values")
	})
	t.Run("alias to itself", func(t *testing.T) {
		t.Parallel()
		_, err := configs.Load(ours(configs.Options{File: write(t, "a: &a {b: *a}\n")}))
		require.ErrorContains(t, err, "nested too deeply")
	})
}

func TestTopLevelKnowsItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	type top struct {
		Environment string `yaml:"environment"`
	}
	d := load(t, configs.Options{File: write(t, "profile: embedded\nenvironment: external\nenvironmen: x\nplugins: {kafka: {}}\n")})
	s := top{}
	require.Equal(t, []string{`settings.yaml:3: environmen: unknown setting; did you mean "environment"?`}, problems(d.Decode("", &s)))
	require.Equal(t, "external", s.Environment)
}

func TestUnclaimedNamesSectionsWithoutAPlugin(t *testing.T) {
	t.Parallel()
	d := load(t, configs.Options{File: write(t, "plugins:\n  kafak: {}\n  kafka: {}\n  zzz:\n    a: 1\n")})
	require.NoError(t, d.Decode("plugins.kafka", &struct{}{}))
	require.Equal(t, []string{
		`settings.yaml:2: plugins.kafak: no plugin of this binary has this name; did you mean "kafka"?`,
		`settings.yaml:4: plugins.zzz: no plugin of this binary has this name`,
	}, problems(d.Unclaimed()))

	d = load(t, configs.Options{File: write(t, "plugins: 5\n")})
	require.Equal(t, []string{"settings.yaml:1: plugins: expected a section, got 5"}, problems(d.Unclaimed()))
	require.Equal(t, []string{"settings.yaml:1: plugins: expected a section, got 5"},
		problems(d.Decode("plugins.kafka", &struct{}{})))
	require.NoError(t, load(t, configs.Options{}).Unclaimed())
	require.NoError(t, load(t, configs.Options{Profile: "local"}).Unclaimed(), "a profile may know more plugins than a binary has")
	file := write(t, "profile: local\nplugins: {promotion: {}}\n")
	require.Equal(t, []string{"settings.yaml:2: plugins.promotion: no plugin of this binary has this name"},
		problems(load(t, configs.Options{File: file}).Unclaimed()))
}

func TestDecodeRefusesATargetThatIsNoStructPointer(t *testing.T) {
	t.Parallel()
	d := load(t, configs.Options{})
	for _, target := range []any{nil, shop{}, new(int), (*shop)(nil)} {
		require.ErrorContains(t, d.Decode("a", target), "pointer to a struct")
	}
}

func TestFlattenKeepsForeignErrors(t *testing.T) {
	t.Parallel()
	one := &configs.Error{File: "f", Line: 2, Path: "b", Problem: "x"}
	two := &configs.Error{File: "f", Line: 1, Path: "a", Problem: "y"}
	err := errors.Join(one, errors.New("other"), errors.Join(two, one))
	require.Equal(t, []string{"f:1: a: y", "f:2: b: x", "other"}, func() (out []string) {
		for _, e := range configs.Flatten(err) {
			out = append(out, e.Error())
		}
		return out
	}())
	require.Empty(t, configs.Flatten(nil))
}

func TestProfilesAreWellFormedAndNamed(t *testing.T) {
	t.Parallel()
	names := configs.Profiles(os.DirFS("profiles"))
	require.Equal(t, []string{"broker", "dev", "dispatcher", "embedded", "gateway", "local", "production", "router", "staging"}, names)
	for _, name := range names {
		d := load(t, configs.Options{Profile: name})
		require.Equal(t, []string{"profile " + name}, d.Layers())
		var top struct {
			Environment string `yaml:"environment"`
			Log         any    `yaml:"log"`
		}
		require.NoError(t, d.Decode("", &top), name)
		want := "external"
		if name == "embedded" {
			want = "embedded"
		}
		require.Equal(t, want, top.Environment, name)
	}
}

// Case does not matter in the name of a variable, also for the keys of a map: a second entry would leave the first one, such
// as the old token of a shop, in use.
func TestAVariableFindsTheKeyOfAMap(t *testing.T) {
	file := write(t, "plugins:\n  shop:\n    labels: {ShopA: old, shopb: old, ShopC: old, SHOPC: old}\n    limits: {Large: {up_to: 7, slots: 2}}\n")
	d := load(t, configs.Options{File: file, Environ: []string{
		"MILLRACE__PLUGINS__SHOP__LABELS__SHOPA=new", "MILLRACE__PLUGINS__SHOP__LABELS__ShopB=new", "MILLRACE__PLUGINS__SHOP__LABELS__SHOPD=new",
		"MILLRACE__PLUGINS__SHOP__LIMITS__LARGE__SLOTS=5",
	}})
	s := defaults()
	require.NoError(t, d.Decode("plugins.shop", s))
	require.Equal(t, map[string]string{"team": "pay", "ShopA": "new", "shopb": "new", "ShopC": "old", "SHOPC": "old", "shopd": "new"}, s.Labels)
	require.Equal(t, tier{UpTo: 7, Slots: 5}, s.Limits["Large"])
	require.NotContains(t, s.Limits, "large")
	at, _ := d.Position("plugins.shop.labels.ShopA")
	require.Equal(t, "environment variable MILLRACE__PLUGINS__SHOP__LABELS__SHOPA", at)

	_, err := configs.Load(ours(configs.Options{File: file, Environ: []string{"MILLRACE__PLUGINS__SHOP__LABELS__SHOPC=new"}}))
	require.ErrorContains(t, err, "environment variable MILLRACE__PLUGINS__SHOP__LABELS__SHOPC: plugins.shop.labels.shopc: is one of ShopC, SHOPC, which only their case tells apart: set it in a file")
}
