package once_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once"
)

// The command validate finds a ledger that is missing, so that no process has to start for it.
func TestAKindWithoutALedgerIsAMistakeOfTheSettings(t *testing.T) {
	t.Parallel()
	validate := func(settings string, args ...string) (code int, printed string) {
		file := filepath.Join(t.TempDir(), "mill.yaml")
		require.NoError(t, os.WriteFile(file, []byte(settings), 0o600))
		o := once.NewPlugin(nil, nil)
		var out bytes.Buffer
		code = app.Main(t.Context(), app.Options{
			Name: "mill", Plugins: []pipeline.Plugin{o, newInvoices(o, once.ByKey, nil)}, Environ: []string{}, Stdout: &out, Stderr: &out,
			Args: append([]string{"validate", "--config", file}, args...),
		})
		return code, strings.ReplaceAll(out.String(), file, "mill.yaml")
	}
	code, printed := validate("plugins:\n  once: {}\n")
	require.Equal(t, app.ExitUsage, code)
	require.Equal(t, "mill: the settings have mistakes:\n"+
		"  mill.yaml:2: plugins.once.ledger.dsn: must be set, because effects of the plugin invoice are stored there: "+
		"postgres://… for several instances, or sqlite:/path/of/a/file for one\n", printed)

	code, printed = validate("plugins:\n  once: {ledger: {dsn: \"sqlite:once.db\"}}\n")
	require.Zero(t, code, printed)
	code, printed = validate("plugins:\n  invoice: {enabled: false}\n")
	require.Zero(t, code, "no effect is stored: %s", printed)
	code, printed = validate("plugins:\n  once: {ledger: {dsn: \"env:LEDGER_DSN\"}}\n", "--allow-unset-secrets")
	require.Zero(t, code, "a secret that is not set here may be set there: %s", printed)
}

func TestALedgerThatIsMissingNamesItsPlugins(t *testing.T) {
	t.Parallel()
	for want, names := range map[string][]string{
		"effects of the plugin shop are":                   {"shop"},
		"effects of the plugins shop and effects are":      {"shop", "effects"},
		"effects of the plugins shop, mail and parcel are": {"shop", "mail", "parcel"},
	} {
		require.ErrorContains(t, once.NewPlugin(nil, nil).ValidateIn(app.Where{NeededBy: names}), want)
	}
}
