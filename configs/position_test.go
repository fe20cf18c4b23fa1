package configs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
)

func TestEveryMistakeIsReportedAtOnceWithItsPlace(t *testing.T) {
	t.Parallel()
	file := write(t, `plugins:
  shop:
    max_len: 5
    brokers: a:1
    stream:
      enabld: true
      enabled: yes
      max_len: "16"
      poll_interval: 5
      share: much
    redis: [x]
    password: env:UNSET
    level: loud
    tiers:
      - {up_to: 70000, slots: 200}
      - up_to: -1
        slot: 2
      -
    labels: {a: [1]}
    ignored: 1
    own: 1
    zzzzzzzz: 1
`)
	d := load(t, configs.Options{File: file, Environ: []string{"MILLRACE__PLUGINS__SHOP__LIMITS=5"}})
	require.Equal(t, []string{
		`settings.yaml:3: plugins.shop.max_len: unknown setting; did you mean "plugins.shop.stream.max_len"?`,
		`settings.yaml:4: plugins.shop.brokers: expected a list, got "a:1"`,
		`settings.yaml:6: plugins.shop.stream.enabld: unknown setting; did you mean "enabled"?`,
		`settings.yaml:7: plugins.shop.stream.enabled: expected true or false, got "yes"`,
		`settings.yaml:8: plugins.shop.stream.max_len: expected a whole number, got "16"`,
		`settings.yaml:9: plugins.shop.stream.poll_interval: expected a duration such as 5s or 100ms, got 5`,
		`settings.yaml:10: plugins.shop.stream.share: expected a number, got "much"`,
		`settings.yaml:11: plugins.shop.redis: expected a section, got a list`,
		`settings.yaml:12: plugins.shop.password: environment variable UNSET is not set`,
		`settings.yaml:13: plugins.shop.level: expected debug, info, warn or error, got "loud"`,
		`settings.yaml:15: plugins.shop.tiers[0].up_to: expected a whole number from 0 to 65535, got 70000`,
		`settings.yaml:15: plugins.shop.tiers[0].slots: expected a whole number from -128 to 127, got 200`,
		`settings.yaml:16: plugins.shop.tiers[1].up_to: expected a whole number from 0 to 65535, got -1`,
		`settings.yaml:17: plugins.shop.tiers[1].slot: unknown setting; did you mean "slots"?`,
		`settings.yaml:18: plugins.shop.tiers[2]: expected a section, got nothing`,
		`settings.yaml:19: plugins.shop.labels.a: expected a text, got a list`,
		`settings.yaml:20: plugins.shop.ignored: unknown setting`,
		`settings.yaml:21: plugins.shop.own: unknown setting`,
		`settings.yaml:22: plugins.shop.zzzzzzzz: unknown setting`,
		`environment variable MILLRACE__PLUGINS__SHOP__LIMITS: plugins.shop.limits: expected a section, got 5`,
	}, problems(d.Decode("plugins.shop", defaults())))
}

func TestPositionFallsBackToTheSectionAbove(t *testing.T) {
	t.Parallel()
	file := write(t, "plugins:\n  shop:\n    stream:\n      max_len: 1\n    tiers:\n      - up_to: 1\n")
	d := load(t, configs.Options{File: file})
	for path, want := range map[string]int{
		"plugins.shop.stream.max_len":  4,
		"plugins.shop.stream.enabled":  3,
		"plugins.shop.redis.brokers":   2,
		"plugins.shop.tiers[0].up_to":  6,
		"plugins.shop.tiers[9].up_to":  5,
		"plugins.shop.stream.max_len.": 4,
	} {
		at, line := d.Position(path)
		require.Equal(t, file, at, path)
		require.Equal(t, want, line, path)
	}
	at, line := load(t, configs.Options{}).Position("plugins.shop")
	require.Empty(t, at)
	require.Zero(t, line)
	require.EqualError(t, load(t, configs.Options{}).Problem("a.b", "must be > 0, got -1"), "a.b: must be > 0, got -1")
}

// A setting that nobody wrote is not blamed on a variable that sets another one of its section.
func TestAMissingSettingIsNotBlamedOnAVariable(t *testing.T) {
	t.Parallel()
	const variable = "MILLRACE__PLUGINS__SHOP__STREAM__MAX_LEN"
	file := write(t, "plugins:\n  shop:\n    level: info\n")
	for name, c := range map[string]struct {
		o    configs.Options
		path string
		at   string
		line int
	}{
		"no file":                          {configs.Options{}, "plugins.shop.redis.url", "", 0},
		"no file, the variable's section":  {configs.Options{}, "plugins.shop.stream.url", "", 0},
		"no file, another plugin":          {configs.Options{}, "plugins.other", "", 0},
		"no file, no plugin":               {configs.Options{}, "log.level", "", 0},
		"a file":                           {configs.Options{File: file}, "plugins.shop.redis.url", file, 2},
		"a file, the variable's section":   {configs.Options{File: file}, "plugins.shop.stream.url", file, 2},
		"what the variable sets":           {configs.Options{File: file}, "plugins.shop.stream.max_len", "environment variable " + variable, 0},
		"an override":                      {configs.Options{Overrides: map[string]any{"plugins.shop.level": "info"}}, "plugins.shop.redis.url", "", 0},
		"an override that is the section":  {configs.Options{Overrides: map[string]any{"plugins.shop": map[string]any{"level": "info"}}}, "plugins.shop.redis.url", "override", 0},
		"a value where a section is asked": {configs.Options{}, "plugins.shop.stream.max_len.x", "environment variable " + variable, 0},
	} {
		c.o.EnvPrefix, c.o.Environ = "MILLRACE", []string{variable + "=5"}
		at, line := load(t, c.o).Position(c.path)
		require.Equal(t, c.at, at, name)
		require.Equal(t, c.line, line, name)
	}
}
