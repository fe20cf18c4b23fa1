package app_test

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// vault is a plugin with two secrets.
type vault struct {
	config *struct {
		Password setting.Secret `yaml:"password"`
		Token    setting.Secret `yaml:"token"`
		Size     int            `yaml:"size"`
	}
}

func (vault) Name() string                      { return "vault" }
func (v vault) Settings() any                   { return v.config }
func (vault) Register(*pipeline.Registry) error { return nil }

func newVault() vault {
	var v vault
	v.config = new(struct {
		Password setting.Secret `yaml:"password"`
		Token    setting.Secret `yaml:"token"`
		Size     int            `yaml:"size"`
	})
	return v
}

func TestSecretsMayBeUnsetOffline(t *testing.T) {
	t.Parallel()
	const settings = "plugins:\n  vault: {password: \"env:MILL_TEST_ABSENT\", token: \"file:/absent/token\"}\n"
	for _, command := range []string{"validate", "topology"} {
		file := settingsFile(t, settings)
		strict := run(t.Context(), options(newVault(), command, "--config", file))
		require.Equal(t, app.ExitUsage, strict.code, command)
		require.Contains(t, strict.stderr, "MILL_TEST_ABSENT is not set")

		r := run(t.Context(), options(newVault(), command, "--config", file, "--allow-unset-secrets"))
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stderr, "not here: plugins.vault.password: environment variable MILL_TEST_ABSENT is not set\n")
		require.Contains(t, r.stderr, "not here: plugins.vault.token: secret: open /absent/token")

		file = settingsFile(t, settings+"  wault: {}\n")
		r = run(t.Context(), options(newVault(), command, "--config", file, "--allow-unset-secrets"))
		require.Equal(t, app.ExitUsage, r.code, "other errors are still errors")

		r = run(t.Context(), options(newVault(), command, "--config", "/absent/settings.yaml", "--allow-unset-secrets"))
		require.Equal(t, app.ExitUsage, r.code, "the settings themselves are no secret")
		require.Contains(t, r.stderr, "/absent/settings.yaml: can't be read: no such file or directory")
	}
}

// lock is a plugin that reads a key for its routes, and a certificate.
type lock struct{ config *lockConfig }

type lockConfig struct {
	Key   string      `yaml:"key"`
	TLS   setting.TLS `yaml:"tls"`
	Doors int         `yaml:"doors"` // at one path
}

func (lock) Name() string    { return "lock" }
func (l lock) Settings() any { return l.config }

func (l lock) ValidateIn(app.Where) error {
	var p setting.Problems
	_, err := os.ReadFile(l.config.Key)
	p.Check(err == nil, "key", "%v", err)
	p.Under("tls", l.config.TLS.Validate())
	return p.Err()
}

func (l lock) Register(r *pipeline.Registry) error {
	for range l.config.Doors {
		r.HTTP("GET /door", http.NotFoundHandler())
	}
	if _, err := os.ReadFile(l.config.Key); err != nil {
		return &setting.FieldError{Path: "key", Problem: err.Error()}
	}
	return nil
}

// Keys and certificates are files of the pod or of the unit, and not of the machine that checks the settings.
func TestFilesMayBeMissingOffline(t *testing.T) {
	t.Parallel()
	for command, shows := range map[string]string{"validate": "The settings are valid", "topology": "GET /door"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			filesMayBeMissing(t, command, shows)
		})
	}
}

func filesMayBeMissing(t *testing.T, command, shows string) {
	t.Helper()
	check := func(settings string, flags ...string) result {
		return run(t.Context(), options(lock{new(lockConfig)}, append([]string{command, "--config", settingsFile(t, settings)}, flags...)...))
	}
	const settings = "plugins:\n  lock: {key: /absent/key.pem, doors: 1, tls: {enabled: true, ca_file: /absent/ca.pem}}\n"
	const key, authority = "plugins.lock.key: open /absent/key.pem: ", "plugins.lock.tls.ca_file: open /absent/ca.pem: "
	strict := check(settings)
	require.Equal(t, app.ExitUsage, strict.code)
	require.Contains(t, strict.stderr, key)
	require.Contains(t, strict.stderr, authority)

	r := check(settings, "--allow-unset-secrets")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "not here: "+key)
	require.Contains(t, r.stderr, "not here: "+authority)
	require.Contains(t, r.stdout, shows)

	there := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(there, []byte("no certificate"), 0o600))
	wrong := check("plugins:\n  lock: {key: /absent/key.pem, tls: {enabled: true, ca_file: "+there+"}}\n", "--allow-unset-secrets")
	require.Equal(t, app.ExitUsage, wrong.code, "a file that is here is checked")
	require.Contains(t, wrong.stderr, "contains no certificate")

	wrong = check("plugins:\n  lock: {key: /absent/key.pem, doors: 2}\n", "--allow-unset-secrets")
	require.Equal(t, app.ExitUsage, wrong.code, "the absent key hides no mistake of a route")
	require.Contains(t, wrong.stderr, "GET /door")
	require.NotContains(t, wrong.stderr, "key.pem")
}

func TestSecretsOfTheServiceManager(t *testing.T) {
	t.Parallel()
	dir, v := t.TempDir(), newVault()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("hush\n"), 0o600))
	o := options(v, "validate", "--config", settingsFile(t, "plugins:\n  vault: {password: \"file:$CREDENTIALS_DIRECTORY/password\"}\n"))
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code)
	require.Contains(t, r.stderr, "plugins.vault.password: environment variable CREDENTIALS_DIRECTORY, which systemd sets for a unit with LoadCredential, and root for a command beside it (CREDENTIALS_DIRECTORY=/etc/credstore), is not set\n")

	two := options(newVault(), "validate", "--config", settingsFile(t, "plugins:\n  vault:\n    password: \"file:$CREDENTIALS_DIRECTORY/password\"\n    token: \"file:$CREDENTIALS_DIRECTORY/token\"\n"))
	r = run(t.Context(), two)
	require.Equal(t, 1, strings.Count(r.stderr, "which systemd sets"), "one cause")
	require.Contains(t, r.stderr, ":4: plugins.vault.token: the same\n")

	o.Args = append(o.Args, "--allow-unset-secrets")
	require.Zero(t, run(t.Context(), o).code, "such as in CI")

	o.Environ = []string{"CREDENTIALS_DIRECTORY=" + dir}
	require.Zero(t, run(t.Context(), o).code)
	require.Equal(t, "hush", v.config.Password.Reveal())
}

// guardedVault is a vault with commands. One report asks for the password, one for the token as it is now, and one for
// neither; of two actions one asks for the password.
type guardedVault struct{ vault }

func (k guardedVault) Operations() operate.Operations {
	about := func(name string) operate.About {
		return operate.About{Name: name, Short: "Look", Examples: []string{name}}
	}
	answer := func(look func()) func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
		return func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
			look()
			return operate.Answer{Value: "seen", Lines: []string{"seen"}}, nil
		}
	}
	action := func(name string, look func()) operate.Action {
		return operate.Action{
			About: about(name), Danger: operate.Safe, Role: operate.Operator, Preview: answer(look),
			Do: func(context.Context, *pipeline.Registry, operate.Input, operate.Use) (operate.Answer, error) {
				look()
				return operate.Answer{Value: "changed", Lines: []string{"changed"}}, nil
			},
		}
	}
	live := func() { k.config.Token.Live("token", nil, nil).Value(context.Background()) }
	return operate.Operations{
		Reports: []operate.Report{
			{About: about("outside"), Read: answer(func() {})},
			{About: about("inside"), Read: answer(func() { k.config.Password.Reveal() })},
			{About: about("now"), Read: answer(live)},
			{About: about("away"), Read: func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
				k.config.Password.Reveal()
				return operate.Answer{}, errors.New("the far side says that the password is wrong")
			}},
		},
		Actions: []operate.Action{action("shut", func() {}), action("lock", func() { k.config.Password.Reveal() })},
	}
}

// ValidateIn looks at the secrets, which is no use of them.
func (k guardedVault) ValidateIn(app.Where) error {
	if k.config.Password.Reveal() == "1234" {
		return &setting.FieldError{Path: "password", Problem: "must not be 1234"}
	}
	return nil
}

// A command needs the secrets that it asks for, and no other. What an action has changed is shown also then. What starts
// the service, or checks it, needs all of them.
func TestACommandNeedsOnlyItsOwnSecrets(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, "plugins:\n  vault: {password: \"env:MILL_TEST_ABSENT\", token: \"file:/absent/token\"}\n")
	const password, token = "plugins.vault.password: environment variable MILL_TEST_ABSENT is not set", "plugins.vault.token: secret: open /absent/token"
	ask := func(command ...string) result {
		return run(t.Context(), options(guardedVault{newVault()}, append(command, "--config", file)...))
	}
	for _, command := range [][]string{{"outside"}, {"routes"}, {"shut"}, {"shut", "--dry-run"}} {
		r := ask(command...)
		require.Zero(t, r.code, r.stderr)
		require.NotContains(t, r.stderr, "not set")
	}
	for command, want := range map[string][2]string{"inside": {password, token}, "now": {token, password}, "away": {password, token}} {
		r := ask(command)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, want[0], command)
		require.NotContains(t, r.stderr, want[1], command)
		require.NotContains(t, r.stdout+r.stderr, "seen", "an answer that lacks something would mislead")
		require.NotContains(t, r.stderr, "the password is wrong", "that is only the consequence")
	}
	for flags, stdout := range map[string]string{"": "changed\n", "--dry-run": ""} {
		r := ask(append([]string{"lock"}, strings.Fields(flags)...)...)
		require.Equal(t, app.ExitUsage, r.code, flags)
		require.Contains(t, r.stderr, password, flags)
		require.Equal(t, stdout, r.stdout, flags)
	}
	for _, command := range [][]string{{"run"}, {"validate"}, {"doctor"}, {"migrate"}} {
		r := ask(command...)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, password, command)
		require.Contains(t, r.stderr, token, command)
	}
	wrong := settingsFile(t, "plugins:\n  vault: {password: \"env:MILL_TEST_ABSENT\", size: many}\n")
	r := run(t.Context(), options(guardedVault{newVault()}, "outside", "--config", wrong))
	require.Equal(t, app.ExitUsage, r.code)
	require.Contains(t, r.stderr, password, "all mistakes at once")
	require.Contains(t, r.stderr, "plugins.vault.size")
}

// gate is a plugin with a file that no command opens.
type gate struct{ config *gateConfig }

type gateConfig struct {
	wrong error
	Key   string `yaml:"key"`
}

func (gate) Name() string                      { return "gate" }
func (g gate) Settings() any                   { return g.config }
func (gate) Register(*pipeline.Registry) error { return nil }

func (c *gateConfig) Validate() error {
	if c.wrong != nil {
		return &setting.FieldError{Path: "key", Problem: c.wrong.Error()}
	}
	return nil
}

// A command needs no file that only the service opens, such as the key of a server, which an operator may not read.
func TestACommandNeedsOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, "plugins:\n  gate: {key: /run/key.pem}\n")
	for _, why := range []error{syscall.ENOENT, syscall.EACCES} {
		ask := func(command string) result {
			o := options(guardedVault{newVault()}, command, "--config", file)
			o.Plugins = append(o.Plugins, gate{&gateConfig{wrong: &fs.PathError{Op: "open", Path: "/run/key.pem", Err: why}}})
			return run(t.Context(), o)
		}
		r := ask("outside")
		require.Zero(t, r.code, r.stderr)
		for _, command := range []string{"run", "validate", "doctor", "migrate"} {
			r := ask(command)
			require.Equal(t, app.ExitUsage, r.code, command)
			require.Contains(t, r.stderr, "plugins.gate.key: open /run/key.pem: "+why.Error(), command)
		}
	}
}

// The profile of a service has secrets of plugins that its settings switch off, and nobody has these.
func TestAPluginThatIsOffNeedsNoSecrets(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"env:MILL_TEST_ABSENT", "file:/absent/token", "file:$CREDENTIALS_DIRECTORY/token"} {
		settings := "plugins:\n  vault: {enabled: false, password: \"" + secret + "\"}\n"
		r := run(t.Context(), options(newVault(), "validate", "--config", settingsFile(t, settings)))
		require.Zero(t, r.code, r.stderr)
		r = run(t.Context(), options(newVault(), "validate", "--config", settingsFile(t, strings.Replace(settings, "enabled: false", "enabled: true", 1))))
		require.Equal(t, app.ExitUsage, r.code)
	}
	r := run(t.Context(), options(newVault(), "validate", "--config", settingsFile(t, "plugins:\n  vault: {enabled: false, sise: 3}\n")))
	require.Equal(t, app.ExitUsage, r.code, "a wrong name is one all the same")
}
