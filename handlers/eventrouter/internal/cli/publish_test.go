package cli

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// What is given in the place of a stage, and is none, is refused before a server is asked.
func TestPublishRefusesWhatIsNoStage(t *testing.T) {
	t.Parallel()
	for stage, says := range map[string]string{
		`{"percent":50}`: `that is data, which comes with --data after a stage, as in: millrace jobs publish scan/42 scan --data '{"percent":50}'`,
		`"half"`:         `that is data, which comes with --data after a stage, as in: millrace jobs publish scan/42 scan --data '"half"'`,
		`{percent:50}`:   "a stage comes after the job, as in: millrace jobs publish scan/42 scan\n",
		"scan\tthis":     "a stage comes after the job",
		" ":              "a stage comes after the job",
	} {
		var out bytes.Buffer
		code := app.Main(t.Context(), app.Options{
			Name: "millrace", Plugins: []pipeline.Plugin{jobs{}}, Args: []string{"jobs", "publish", "scan/42", stage}, Environ: []string{}, Stdout: &out, Stderr: &out,
		})
		require.Equal(t, app.ExitUsage, code, out.String())
		require.Contains(t, out.String(), "is no name of a stage, which has letters, digits, spaces and . _ : / - only")
		require.Contains(t, out.String(), says)
	}
	for _, stage := range []string{"scan", "step 2", "fetch/2.1_a-b:c", "größe", "10"} {
		require.NoError(t, checkStage("scan/42", stage), stage)
	}
}
