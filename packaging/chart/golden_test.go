package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

var update = flag.Bool("update", false, "write testdata again")

// short replaces the alerts and the dashboards, which the repository has once, by their names. They are the
// whole end of their documents.
func short(t *testing.T, doc string) string {
	t.Helper()
	elsewhere, err := added("millrace")
	require.NoError(t, err)
	for name, path := range elsewhere {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, indent := range []string{"  ", "    "} {
			lines := strings.Split(string(text), "\n")
			for i := range lines {
				lines[i] = indent + lines[i]
			}
			if before, found := strings.CutSuffix(doc, strings.TrimRight(strings.Join(lines, "\n"), " \n")+"\n"); found {
				return before + indent + "(" + name + ")\n"
			}
		}
	}
	return doc
}

func TestExamplesRenderWhatTheyDid(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, doc := range documents(t, exampleValues(t, file)) {
				got.WriteString("---\n" + short(t, doc))
			}
			files, err := render(t, exampleValues(t, file))
			require.NoError(t, err)
			got.WriteString("---\n" + strings.TrimSpace(files["NOTES.txt"]) + "\n")
			golden := filepath.Join("testdata", filepath.Base(file)+".golden")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String(), "if the change is meant: GOWORK=off go test ./chart -run %s -update", "TestExamplesRenderWhatTheyDid")
			require.NotContains(t, got.String(), "<no value>")
			require.NotContains(t, got.String(), "%!")
		})
	}
}

// findings are what `helm lint --strict` would fail for.
func findings(dir string, v map[string]any) []string {
	var list []string
	for _, m := range lint.All(dir, v, "events", true).Messages {
		if m.Severity >= support.WarningSev {
			list = append(list, m.Error())
		}
	}
	return list
}

func TestLintFindsNothing(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		require.Empty(t, findings(packedChart(t), exampleValues(t, file)), file)
	}
	require.Empty(t, findings(packedChart(t), nil), "with the values of the chart alone, as catalogues do")

	broken := filepath.Join(t.TempDir(), "millrace")
	require.NoError(t, os.CopyFS(broken, os.DirFS(packedChart(t))))
	template := filepath.Join(broken, "templates", "service.yaml")
	text, err := os.ReadFile(template)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(template, []byte(strings.Replace(string(text), "  clusterIP: None", "clusterIP None", 1)), 0o600))
	require.NotEmpty(t, findings(broken, exampleValues(t, "examples/minimal.yaml")))
}
