package rules_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// missingTests returns the tests that a page names and no test file has.
func missingTests(page string, files map[string][]byte) []string {
	declared := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	for name, text := range files {
		if strings.HasSuffix(name, "_test.go") {
			for _, match := range function.FindAllSubmatch(text, -1) {
				declared[string(match[1])] = true
			}
		}
	}
	var missing []string
	for _, match := range regexp.MustCompile("`((?:Test|Fuzz|Example)\\w+)`").FindAllStringSubmatch(page, -1) {
		if !declared[match[1]] {
			missing = append(missing, match[1])
		}
	}
	return missing
}

func TestTheTestsThatPagesNameExist(t *testing.T) {
	t.Parallel()
	files := pages(t)
	require.Contains(t, files["docs/requirements.md"], "`TestSettingsOfTheOlderSystemHaveItsValues`")
	for _, name := range []string{"docs/requirements.md", "docs/promises.md"} {
		for _, test := range missingTests(files[name], sources(t)) {
			t.Errorf("%s: no test file has %s: name the test that covers the point now", name, test)
		}
	}
	require.Equal(t, []string{"TestB", "FuzzC"}, missingTests("`TestA`, `TestB` and `FuzzC`", map[string][]byte{
		"a_test.go": []byte("package a\n\nfunc TestA(t *testing.T) {}\n// func TestB(\n"), "b.go": []byte("func FuzzC(f *testing.F) {}\n"),
	}))
}

// node returns what is at a path of keys in decoded JSON or YAML, or nil.
func node(tree any, path ...string) any {
	for _, key := range path {
		branch, ok := tree.(map[string]any)
		if !ok {
			return nil
		}
		tree = branch[key]
	}
	return tree
}

// The settings that come from the older system have its defaults, and the profiles its values per
// environment.
func TestSettingsOfTheOlderSystemHaveItsValues(t *testing.T) {
	t.Parallel()
	read := func(name string, decode func([]byte, any) error) any {
		text, err := os.ReadFile(filepath.Join(root(t), "configs", name))
		require.NoError(t, err)
		var tree any
		require.NoError(t, decode(text, &tree))
		return tree
	}
	schema := read("millrace.schema.json", json.Unmarshal)
	for key, want := range map[string]any{
		"max_len": 100_000.0, "poll_interval": "100ms", "idle_timeout": "30s", "batch_size": 10.0,
		"min_consumers_per_instance": 1.0, "max_consumers_per_instance": 32.0, "stop_timeout": "5s",
	} {
		got := node(schema, "properties", "plugins", "properties", "promotion", "properties", "stream", "properties", key, "default")
		require.Equal(t, want, got, key)
	}
	for profile, want := range map[string]map[string]any{
		"local":      {"enabled": true, "max_consumers_per_instance": 4},
		"dev":        {"enabled": true, "max_consumers_per_instance": 8},
		"staging":    {"enabled": true, "max_consumers_per_instance": 16, "poll_interval": "5s", "min_consumers_per_instance": 8},
		"production": {"enabled": true, "max_consumers_per_instance": nil, "poll_interval": "5s", "min_consumers_per_instance": 8},
	} {
		settings := read("profiles/"+profile+".yaml", yaml.Unmarshal)
		for key, value := range want {
			require.Equal(t, value, node(settings, "plugins", "promotion", "stream", key), "%s of the profile %s", key, profile)
		}
	}
}
