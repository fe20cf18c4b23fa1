package wire_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

// Commands of the service refuse a store without tables and leave it unchanged. `migrate` makes the
// tables, and then they work.
func TestCommandsDoNotMigrate(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		file := filepath.Join(t.TempDir(), "mill.yaml")
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(`
plugins:
  promotion: {ledger: {dsn: "DSN"}, money_api: {url: "http://127.0.0.1:1"}}
  deadletter: {store: {dsn: "DSN"}}
`, "DSN", dsn)), 0o600))
		command := func(line string) (int, string) {
			var out bytes.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: wire.New().Plugins(), Environments: wire.Environments(), Profiles: wire.Profiles(), DefaultProfile: "embedded", Args: append(strings.Fields(line), "--config", file),
				Environ: []string{}, Stdout: &out, Stderr: &out,
			})
			return code, out.String()
		}
		const empty = "version 0, would become"
		lines := []string{
			"campaign pause POINT 1 --why test --future", "campaign cancel POINT 1 --why test --future", "campaign explain POINT 1 2", "unknown list",
			"unknown resolve POINT 1 2 --paid TX --why test", "deadletter list", "deadletter replay --class a --why test", "deadletter discard --class a --why test",
		}
		for _, line := range lines {
			code, out := command(line)
			require.Equal(t, app.ExitUsage, code, "%s: %s", line, out)
			require.Contains(t, out, "the database is at 0\nRun 'millrace migrate'", line)
			code, out = command("migrate --dry-run")
			require.Zero(t, code, out)
			require.Equal(t, 2, strings.Count(out, empty), "%s: %s", line, out)
		}
		if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
			require.NoFileExists(t, path)
		}
		code, out := command("migrate")
		require.Zero(t, code, out)
		code, out = command("migrate --dry-run")
		require.Zero(t, code, out)
		require.Equal(t, 2, strings.Count(out, "up to date"), out)
		for _, line := range lines {
			_, out := command(line)
			require.NotContains(t, out, "migrate", line)
		}
	})
}
