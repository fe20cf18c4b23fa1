package rules_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goLines returns the lines of the Go blocks of a page.
func goLines(page string) []string {
	var lines []string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if fence := strings.TrimSpace(line); strings.HasPrefix(fence, "```") {
			inside = fence == "```go"
			continue
		}
		if inside {
			lines = append(lines, line)
		}
	}
	return lines
}

// The Go of the main README is a program that the tests of e2e build and run.
func TestTheGoOfPagesIsCompiled(t *testing.T) {
	t.Parallel()
	for page, file := range map[string]string{
		"CONTRIBUTING.md":                 "pipeline/pipelinetest/transport_test.go",
		"docs/concepts.md":                "pipeline/example_test.go",
		"docs/middleware.md":              "pipeline/example_middleware_test.go",
		"pipeline/pipelinetest/README.md": "pipeline/pipelinetest/readme_test.go",
	} {
		lines := goLines(pages(t)[page])
		require.NotEmpty(t, lines, page)
		code, err := os.ReadFile(filepath.Join(root(t), file))
		require.NoError(t, err)
		require.Empty(t, firstMissing(lines, string(code)), "a line of %s that %s does not have", page, file)
	}
	require.Equal(t, "c", firstMissing(goLines("```go\na\nc\n```\n```sh\nd\n```\n"), "a\nb\n"))
}

// unlisted returns the folders that have no link in the table of a README.
func unlisted(readme string, folders []string) []string {
	return slices.DeleteFunc(slices.Clone(folders), func(folder string) bool {
		return strings.Contains(readme, "]("+folder+")") || strings.Contains(readme, "]("+folder+"/README.md)")
	})
}

func TestTheReadmeListsEveryFolder(t *testing.T) {
	t.Parallel()
	var folders []string
	for _, pattern := range []string{"*", "pipeline/*", "plugins/*"} {
		found, err := filepath.Glob(filepath.Join(root(t), pattern))
		require.NoError(t, err)
		for _, path := range found {
			info, err := os.Stat(path)
			require.NoError(t, err)
			if name := filepath.Base(path); info.IsDir() && !slices.Contains([]string{"bin", "cmd", "dist"}, name) && !strings.HasPrefix(name, ".") {
				folder, err := filepath.Rel(root(t), path)
				require.NoError(t, err)
				folders = append(folders, filepath.ToSlash(folder))
			}
		}
	}
	require.Greater(t, len(folders), 15)
	_, table, _ := strings.Cut(pages(t)["README.md"], "## The folders")
	table, _, _ = strings.Cut(table, "\n## ")
	require.Empty(t, unlisted(table, folders), "folders that the table of the README does not list")
	require.Equal(t, []string{"b"}, unlisted("| [`a/`](a) | x |\n| [`b/c`](b/c) |\n", []string{"a", "b"}))
}
