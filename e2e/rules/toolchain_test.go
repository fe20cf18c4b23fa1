package rules_test

import (
	"go/version"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// oldestToolchain is the first one whose standard library has no known vulnerability that the code reaches, by
// `make vuln`. Raise it when that command finds one that a newer toolchain has repaired.
const oldestToolchain = "go1.26.10"

// badToolchains returns the files that name no toolchain, an older one, or another one than go.mod does.
func badToolchains(files map[string]string, oldest string) []string {
	named := func(text string) string {
		match := regexp.MustCompile(`(?m)^toolchain (\S+)$`).FindStringSubmatch(text)
		if match == nil {
			return ""
		}
		return match[1]
	}
	var bad []string
	for name, text := range files {
		if got := named(text); version.Compare(got, oldest) < 0 || got != named(files["go.mod"]) {
			bad = append(bad, name)
		}
	}
	slices.Sort(bad)
	return bad
}

func TestAllModulesNameAToolchainWithoutKnownVulnerabilities(t *testing.T) {
	t.Parallel()
	top := root(t)
	files := filesIn(t, top, func(path, name string) bool {
		return name == ".git" || name == ".services" || name == "testdata" || path == filepath.Join(top, "bin")
	}, func(name string) bool { return name == "go.mod" || name == "go.work" })
	require.GreaterOrEqual(t, len(files), 6, "five modules and the workspace")
	require.Empty(t, badToolchains(files, oldestToolchain), "each names the toolchain of go.mod, %s or newer (make vuln)", oldestToolchain)

	run, err := os.ReadFile(filepath.Join(top, ".ci", "run"))
	require.NoError(t, err)
	require.Contains(t, string(run), "GOTOOLCHAIN=$(awk '$1 == \"toolchain\" { print $2 }' go.mod)\nexport GOTOOLCHAIN\n", "the check runs with it")

	require.Equal(t, []string{"b", "c"}, badToolchains(map[string]string{
		"go.mod": "go 1.26.0\n\ntoolchain go1.26.10\n", "a": "toolchain go1.26.10\n", "b": "toolchain go1.27.0\n", "c": "go 1.26.0\n",
	}, "go1.26.9"))
	require.Equal(t, []string{"go.mod"}, badToolchains(map[string]string{"go.mod": "toolchain go1.26.9\n"}, "go1.26.10"))
}
