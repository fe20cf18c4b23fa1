package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const testVersion = "v0.98.7"

var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "millrace-chart-")
	if err != nil {
		panic(err)
	}
	workDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// packed is the chart as `make chart` writes it: the folder.
var packed = sync.OnceValues(func() (string, error) {
	_, err := pack("millrace", testVersion, filepath.Join(workDir, "dist"))
	return filepath.Join(workDir, "dist", "millrace"), err
})

func packedChart(t *testing.T) string {
	t.Helper()
	dir, err := packed()
	require.NoError(t, err)
	return dir
}

// examples are the values files that people start from.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("examples/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 6)
	return files
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &v))
	return v
}

func exampleValues(t *testing.T, file string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return values(t, string(text))
}

// renderChart returns what the chart makes of values for a release `millrace` in the namespace `events`, by
// the name of the template.
func renderChart(c *chart.Chart, v map[string]any) (map[string]string, error) {
	all, err := chartutil.ToRenderValues(c, v, chartutil.ReleaseOptions{Name: "millrace", Namespace: "events", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	short := map[string]string{}
	for name, text := range files {
		short[filepath.Base(name)] = text
	}
	return short, nil
}

func render(t *testing.T, v map[string]any) (map[string]string, error) {
	t.Helper()
	c, err := loader.Load(packedChart(t))
	require.NoError(t, err)
	return renderChart(c, v)
}

// documents returns the objects of rendered templates, as text and in the order of their templates.
func documents(t *testing.T, v map[string]any) []string {
	t.Helper()
	files, err := render(t, v)
	require.NoError(t, err)
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var docs []string
	for _, name := range names {
		for doc := range strings.SplitSeq("\n"+files[name], "\n---\n") {
			if doc = strings.TrimSpace(doc); doc != "" {
				docs = append(docs, doc+"\n")
			}
		}
	}
	return docs
}
