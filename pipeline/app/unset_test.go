package app_test

import (
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
