package app

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func writeManual(t *testing.T, dir string, plugins ...pipeline.Plugin) {
	t.Helper()
	var out, errs bytes.Buffer
	require.Zero(t, Main(t.Context(), Options{
		Name: "mill", Version: "v1.2.3", Short: "Grind words", Args: []string{"man", dir}, Environ: []string{}, Plugins: plugins, Stdout: &out, Stderr: &errs,
	}), errs.String())
	require.Empty(t, out.String())
	require.Empty(t, errs.String())
}

func TestTheManualHasAPageForEachCommandThatTheHelpShows(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dist/man")
	writeManual(t, dir)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	require.Equal(t, []string{
		"mill-completion.1", "mill-doctor.1", "mill-migrate.1", "mill-new-handler.1", "mill-new-once.1", "mill-new.1", "mill-routes.1", "mill-run.1", "mill-schema.1",
		"mill-tail.1", "mill-topology.1", "mill-validate.1", "mill-version.1", "mill.1",
	}, names)
	first, err := os.ReadFile(filepath.Join(dir, "mill.1"))
	require.NoError(t, err)
	for _, text := range []string{
		"\n.SH NAME\nmill \\- Grind words\n", "\n.TP\ntail\nShow messages", "\n.SH EXIT STATUS\n.TP\n0\n", "\nMILL_CONFIG\n", "mill\\-run(1), ", `"mill v1.2.3"`,
	} {
		require.Contains(t, string(first), text)
	}
	validate, err := os.ReadFile(filepath.Join(dir, "mill-validate.1"))
	require.NoError(t, err)
	for _, text := range []string{"\n.SH SYNOPSIS\n", "mill validate [flags]", "\n.SH OPTIONS\n", "\n.SH EXAMPLES\n", `\-\-allow\-unset\-secrets`, "\n.SH SEE ALSO\nmill(1)\n"} {
		require.Contains(t, string(validate), text)
	}
}

// speller is a plugin with a command whose help has what roff reads in another way.
type speller struct{}

func (speller) Name() string                      { return "speller" }
func (speller) Register(*pipeline.Registry) error { return nil }
func (speller) Commands(*Host) []*cobra.Command {
	return []*cobra.Command{{
		Use: "spell", Short: `Spell a\b`, Long: ".so /etc/passwd\n\n'quoted' to \u20ac 5 with --why \"x\"",
		Example: "  mill spell\n  .hidden", Run: func(*cobra.Command, []string) {},
	}}
}

func TestRoffShowsTheTextOfAHelpAsItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeManual(t, dir, speller{})
	page := filepath.Join(dir, "mill-spell.1")
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, line := range []string{`Spell a\eb`, `\&.so /etc/passwd`, `\&'quoted' to \[u20AC] 5 with \-\-why \(dqx\(dq`, "\n\\&.hidden\n"} {
		require.Contains(t, string(text), line)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff to read the page")
	}
	shown, err := exec.CommandContext(t.Context(), groff, "-man", "-ww", "-Tutf8", "-P-c", page).CombinedOutput()
	require.NoError(t, err, "%s", shown)
	require.Contains(t, string(shown), ".so /etc/passwd")
	require.NotContains(t, string(shown), "warning")
}
