package kafka

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// TestReadme holds the README against the code: keys, metrics and the example.
func TestReadme(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("README.md")
	require.NoError(t, err)
	readme := string(raw)
	configuration, rest, ok := strings.Cut(readme, "## Metrics")
	require.True(t, ok)

	var named []string
	for _, cell := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\|").FindAllStringSubmatch(configuration, -1) {
		for key := range strings.SplitSeq(cell[1], ", ") {
			named = append(named, strings.Trim(key, "`"))
		}
	}
	require.ElementsMatch(t, settingKeys(reflect.TypeFor[Config](), ""), named)

	descs := make(chan *prometheus.Desc, 100)
	newMetrics().Describe(descs)
	close(descs)
	metrics, _, _ := strings.Cut(rest, "## Failure")
	for d := range descs {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		require.Contains(t, metrics, "`"+name+"`")
	}

	example, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	code := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(readme)[1]
	require.Contains(t, unindented(string(example)), unindented(code))
}

func unindented(code string) string {
	return regexp.MustCompile(`(?m)^\s+`).ReplaceAllString(code, "")
}

// settingKeys returns the keys of a settings struct, with dots.
func settingKeys(of reflect.Type, prefix string) (keys []string) {
	for f := range of.Fields() {
		key := prefix + f.Tag.Get("yaml")
		if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[setting.Secret]() {
			keys = append(keys, settingKeys(f.Type, key+".")...)
			continue
		}
		keys = append(keys, key)
	}
	return keys
}
