package reference_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unknownNames returns the settings and metrics in backticks on a page that do not exist.
// A section of settings exists, and so does a name that ends in * or … when something begins so.
func unknownNames(page string, settings, metrics []string) []string {
	name := regexp.MustCompile("`((?:plugins\\.|millrace_)[a-z_.*…]+)(?:\\{[^`]*\\})?(?:: [^`]*)?`")
	var unknown []string
	for _, match := range name.FindAllStringSubmatch(page, -1) {
		all, prefix := settings, strings.TrimRight(match[1], ".*…")+"."
		if strings.HasPrefix(match[1], "millrace_") {
			all, prefix = metrics, ""
			if stem := strings.TrimRight(match[1], "*…"); stem != match[1] {
				prefix = stem
			}
		}
		if !slices.ContainsFunc(all, func(one string) bool { return one == match[1] || prefix != "" && strings.HasPrefix(one, prefix) }) {
			unknown = append(unknown, match[1])
		}
	}
	return unknown
}

func TestSettingsAndMetricsOfTheDocumentationExist(t *testing.T) {
	settings := slices.Sorted(maps.Keys(defaults(t)))
	metrics := append(slices.Sorted(maps.Keys(allMetrics(t))), "millrace_health_check_ok", "millrace_build_info", "millrace_instance_info")
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(top, pattern))
		require.NoError(t, err)
		pages = append(pages, found...)
	}
	require.Greater(t, len(pages), 10)
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue // it names what is gone
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range unknownNames(string(text), settings, metrics) {
			t.Errorf("%s names %s, which does not exist", page, name)
		}
	}
	require.Equal(t, []string{"plugins.a.c", "millrace_x", "millrace_y_total", "millrace_z_…"}, unknownNames(
		"`plugins.a.b` `plugins.a: x` `plugins.a` `plugins.a.c` `plugins.a.b: 1s` `millrace_x_total{type}` `millrace_x_…` `millrace_x` `millrace_y_total` `millrace_z_…`",
		[]string{"plugins.a.b"}, []string{"millrace_x_total"}))
}
