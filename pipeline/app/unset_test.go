package app_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
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
		require.Contains(t, r.stderr, "not set: plugins.vault.password: environment variable MILL_TEST_ABSENT is not set\n")
		require.Contains(t, r.stderr, "not set: plugins.vault.token: secret: open /absent/token")

		file = settingsFile(t, settings+"  wault: {}\n")
		r = run(t.Context(), options(newVault(), command, "--config", file, "--allow-unset-secrets"))
		require.Equal(t, app.ExitUsage, r.code, "other errors are still errors")
	}
}

func TestSecretsOfTheServiceManager(t *testing.T) {
	t.Parallel()
	dir, v := t.TempDir(), newVault()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("hush\n"), 0o600))
	o := options(v, "validate", "--config", settingsFile(t, "plugins:\n  vault: {password: \"file:$CREDENTIALS_DIRECTORY/password\"}\n"))
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUsage, r.code)
	require.Contains(t, r.stderr, "plugins.vault.password: environment variable CREDENTIALS_DIRECTORY, which systemd sets for a unit with LoadCredential, is not set\n")

	o.Args = append(o.Args, "--allow-unset-secrets")
	require.Zero(t, run(t.Context(), o).code, "such as in CI")

	o.Environ = []string{"CREDENTIALS_DIRECTORY=" + dir}
	require.Zero(t, run(t.Context(), o).code)
	require.Equal(t, "hush", v.config.Password.Reveal())
}
