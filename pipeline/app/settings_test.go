package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

const wrongSettings = `environment: raal
stop_timeout: 0s
log: {level: debug, format: xml}
plugins:
  toy:
    evry: 1s
    every: -1s
    greeting: ""
    stream:
      min: 40
  toyy: {}
`

func TestValidateReportsEveryMistakeAtOnce(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, wrongSettings)
	o := options(newToy(), "validate", "--config", file)
	o.Environ = []string{"MILL__START_TIMEOUT=soon", "MILL__PLUGINS__TOY__PASSWORD=file:/nowhere"}
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code)
	require.Empty(t, r.stdout)
	golden(t, "validate.txt", strings.ReplaceAll(r.stderr, file, "mill.yaml"))

	o.Args = append(o.Args, "--json")
	r = run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code)
	require.Empty(t, r.stderr)
	golden(t, "validate.json", strings.ReplaceAll(r.stdout, file, "mill.yaml"))

	o.Args = []string{"run", "--config", file}
	r = run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code, "run reports the same")
	golden(t, "validate.txt", strings.ReplaceAll(r.stderr, file, "mill.yaml"))
}

func TestValidateOfGoodSettings(t *testing.T) {
	t.Parallel()
	r := run(t.Context(), options(newToy(), "validate"))
	require.Equal(t, result{0, "The settings are valid (the defaults).\n", ""}, r)

	file := settingsFile(t, "profile: local\nplugins: {toy: {greeting: hi}}\n")
	r = run(t.Context(), options(newToy(), "validate", "--config", file, "--profile", "dev", "--json"))
	require.Zero(t, r.code, r.stderr)
	var v struct {
		Valid   bool
		Profile string
		Layers  []string
		Errors  []any
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v))
	require.True(t, v.Valid)
	require.Equal(t, "dev", v.Profile)
	require.Equal(t, []string{"profile dev", file}, v.Layers)
	require.NotNil(t, v.Errors)
}

func TestWhatCannotBeDecodedIsReportedOnce(t *testing.T) {
	t.Parallel()
	p := newToy()
	p.config.Every = 0 // as a setting without a default
	file := settingsFile(t, "plugins: {toy: {every: soon, stream: {min: 99}}}\n")
	r := run(t.Context(), options(p, "validate", "--config", file))
	require.Equal(t, "mill: the settings have mistakes:\n"+
		"  "+file+":1: plugins.toy.every: expected a duration such as 5s or 100ms, got \"soon\"\n"+
		"  "+file+":1: plugins.toy.stream.min: must be at most max (32), got 99\n", r.stderr)
}

func TestValidateReportsRegistration(t *testing.T) {
	t.Parallel()
	o := options(newToy(), "validate")
	o.Plugins = append(o.Plugins, newToy())
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code)
	require.Contains(t, r.stderr, `plugin "toy" is already registered`)
}

// A service that has lost its settings must not run as a toy that says it is ready; validate agrees
// with run.
func TestRunAndValidateNeedSettings(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "validate"} {
		o := options(newToy(), command)
		started := false
		o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
			started = true
			return nil, nil, errors.New("started")
		}}}
		r := run(t.Context(), o)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, "no settings: give --config FILE or --profile NAME, or set MILL_CONFIG", command)
		require.False(t, started)

		o.Environ = []string{"MILL_CONFIG=" + settingsFile(t, "environment: raal\n")}
		r = run(t.Context(), o)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, `mill.yaml:1: environment: must be embedded or external, got "raal"`, command)
	}
	o := options(newToy(), "validate", "--profile", "local")
	o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {}}
	require.Equal(t, "The settings are valid (profile local).\n", run(t.Context(), o).stdout)
	o.Args = []string{"validate", "--config", settingsFile(t, "environment: external\n")}
	require.Contains(t, run(t.Context(), o).stdout, "mill.yaml)", "a file without a profile stands on the defaults")
	o.Args = []string{"topology"}
	require.Zero(t, run(t.Context(), o).code, "topology opens nothing and shows the default profile")
}

// dependent is a plugin without settings that needs others.
type dependent struct{ needs []string }

func (dependent) Name() string      { return "dependent" }
func (d dependent) Needs() []string { return d.needs }

func (dependent) Register(*pipeline.Registry) error { panic("registered") }

func TestAPluginCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file string
		args []string
		code int
		want string // in stdout or stderr
	}{
		"not validated":         {"plugins: {toy: {enabled: false, every: 0s}, dependent: {enabled: false}}\n", []string{"validate"}, 0, "The settings are valid"},
		"not registered":        {"plugins: {toy: {enabled: false}, dependent: {enabled: false}}\n", []string{"topology"}, 0, "No routes.\n"},
		"still decoded":         {"plugins: {toy: {enabled: false, evry: 1s}, dependent: {enabled: false}}\n", []string{"validate"}, 2, `mill.yaml:1: plugins.toy.evry: unknown setting; did you mean "every"?`},
		"needed by another":     {"plugins:\n  toy:\n    enabled: false\n", []string{"validate"}, 2, "mill.yaml:3: plugins.toy.enabled: must be true: plugin dependent needs it; switch it on, or set plugins.dependent.enabled: false as well"},
		"its commands need it":  {"plugins: {toy: {enabled: false}, dependent: {enabled: false}}\n", []string{"do"}, 2, "plugins.toy.enabled: must be true: the command is part of this plugin"},
		"a wrong type":          {"plugins: {toy: {enabled: sometimes}}\n", []string{"validate"}, 2, "plugins.toy.enabled: expected true or false, got"},
		"of what has no keys":   {"plugins: {dependent: {nabled: false}}\n", []string{"validate"}, 2, "plugins.dependent.nabled: unknown setting"},
		"enabled, it registers": {"plugins: {dependent: {enabled: false}}\n", []string{"topology"}, 0, "shout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.commands = func(h *app.Host) []*cobra.Command {
				return []*cobra.Command{h.ServiceFlags(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error {
					_, err := h.Load(cmd, nil)
					return err
				}})}
			}
			o := options(p, append(tc.args, "--config", settingsFile(t, tc.file))...)
			o.Plugins = append(o.Plugins, dependent{needs: []string{"toy"}})
			r := run(t.Context(), o)
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Contains(t, r.stdout+r.stderr, tc.want)
		})
	}
}

// A plugin that was given another one, which is not in Plugins, would be called without having been started.
func TestWhatAPluginNeedsIsInTheBinary(t *testing.T) {
	t.Parallel()
	o := options(newToy(), "validate", "--config", settingsFile(t, "plugins:\n  dependent:\n    enabled: true\n"))
	o.Plugins = append(o.Plugins, dependent{needs: []string{"toy", "ledger"}})
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code, r.stderr)
	require.Contains(t, r.stderr, "mill.yaml:2: plugins.dependent: plugin dependent needs ledger, which this binary does not have: add it to app.Options.Plugins\n")
	require.NotContains(t, r.stderr, "needs toy")

	o.Args = []string{"validate", "--config", settingsFile(t, "plugins: {dependent: {enabled: false}}\n")}
	require.Zero(t, run(t.Context(), o).code)
}

// Without settings no empty environment is shown or created.
func TestACommandOfAServiceAssumesNoProfile(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, "environment: external\n")
	load := func(environ []string, args ...string) (result, string) {
		p := newToy()
		o := options(p, append([]string{"ask", "do"}, args...)...)
		o.DefaultProfile, o.Environments, o.Environ = "embedded", map[string]app.Environment{"embedded": {}}, environ
		layers := "not loaded"
		p.commands = func(h *app.Host) []*cobra.Command {
			group := h.ServiceFlags(&cobra.Command{Use: "ask"})
			group.AddCommand(&cobra.Command{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error {
				l, err := h.Load(cmd, nil)
				if err == nil {
					layers = strings.Join(l.Document.Layers(), ", ")
				}
				return err
			}})
			return []*cobra.Command{group}
		}
		return run(t.Context(), o), layers
	}
	for name, c := range map[string]struct {
		environ []string
		args    []string
		want    string
	}{
		"a file":                        {nil, []string{"--config", file}, file},
		"a profile":                     {nil, []string{"--profile", "local"}, "profile local"},
		"the embedded one, named":       {nil, []string{"--profile", "embedded"}, "profile embedded"},
		"a profile in the environment":  {[]string{"MILL__PROFILE=dev"}, nil, "profile dev, environment"},
		"a file in the environment":     {[]string{"MILL_CONFIG=" + file}, nil, file},
		"all of it in the environment":  {[]string{"MILL__ENVIRONMENT=external"}, nil, "environment"},
		"a flag before the environment": {[]string{"MILL_CONFIG=/nowhere.yaml"}, []string{"--profile", "local"}, "profile local"},
	} {
		r, layers := load(c.environ, c.args...)
		require.Zero(t, r.code, "%s: %s", name, r.stderr)
		require.Equal(t, c.want, layers, name)
	}
	for _, environ := range [][]string{nil, {"MILL_CONFIG="}} {
		r, _ := load(environ)
		require.Equal(t, app.ExitUsage, r.code)
		require.Equal(t, "mill: no settings: give --config FILE or --profile NAME, or set MILL_CONFIG (--profile embedded starts all servers in this process; nothing in it is real)\n"+
			"Run 'mill ask do --help' for usage.\n", r.stderr)
	}
}

func TestSettingsReachThePluginInTheirOrder(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, "plugins: {toy: {greeting: file, every: 2s, stream: {min: 3, max: 4}}}\n")
	p := newToy()
	o := options(p, "validate", "--config", file)
	o.Environ = []string{"MILL__PLUGINS__TOY__GREETING=env"}
	require.Zero(t, run(t.Context(), o).code)
	require.Equal(t, "env", p.config.Greeting)
	require.Equal(t, 2*time.Second, p.config.Every)
	require.Equal(t, 3, p.config.Stream.Min)
}

func TestSecretsAreReadAndNeverShown(t *testing.T) {
	t.Setenv("MILL_TEST_SECRET", "s3cret")
	secretFile := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secretFile, []byte("s3cret\n"), 0o600))
	for _, source := range []string{"env:MILL_TEST_SECRET", "file:" + secretFile, "s3cret"} {
		p := newToy()
		file := settingsFile(t, "plugins: {toy: {password: "+source+", every: 0s, stream: {min: 99}}}\nlog: {level: debug}\n")
		for _, command := range []string{"validate", "topology", "schema", "run"} {
			args := []string{command, "--config", file}
			if command == "schema" {
				args = args[:1]
			}
			r := run(t.Context(), options(p, args...))
			require.NotContains(t, r.stdout+r.stderr, "s3cret", command)
		}
		require.Equal(t, "s3cret", p.config.Password.Reveal())
	}
	// Where a value can't be a secret's, it isn't shown either.
	file := settingsFile(t, "plugins: {toy: {password: [s3cret]}}\n")
	r := run(t.Context(), options(newToy(), "validate", "--config", file))
	require.Equal(t, "mill: the settings have mistakes:\n  "+file+":1: plugins.toy.password: expected a text, got a list\n", r.stderr)
}

func TestSchemaCommand(t *testing.T) {
	t.Parallel()
	r := run(t.Context(), options(newToy(), "schema"))
	require.Zero(t, r.code)
	want, err := configs.Schema("mill", []string{"dev", "embedded", "local", "production"}, app.Sections("mill", newToy()))
	require.NoError(t, err)
	require.Equal(t, string(want), r.stdout)
	require.Contains(t, r.stdout, `"stop_timeout"`)
	require.Contains(t, r.stdout, `"default": "1s"`)
}

// bare is a plugin without settings.
type bare struct{}

func (bare) Name() string                      { return "bare" }
func (bare) Register(*pipeline.Registry) error { return nil }
