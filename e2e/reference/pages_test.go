package reference_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
	"github.com/millrace-io/millrace/wire"
)

var update = flag.Bool("update", false, "write docs/settings.md and docs/metrics.md")

// top is the repository's folder.
const top = "../.."

// settingReadmes are the READMEs with a table of settings, by the prefix of their keys.
func settingReadmes(t *testing.T) map[string]string {
	t.Helper()
	readmes := map[string]string{
		"":                                       "configs/README.md",
		"plugins.promotion.ledger.":              "handlers/promotion/ledger/README.md",
		"plugins.promotion.money_api.":           "plugins/once/oncehttp/README.md",
		"plugins.promotion.money_api.simulator.": "plugins/once/simulator/README.md",
		"plugins.waitingroom.page.":              "handlers/waitingroom/pages/README.md",
	}
	for _, folder := range []string{"plugins", "handlers"} {
		found, err := filepath.Glob(filepath.Join(top, folder, "*", "README.md"))
		require.NoError(t, err)
		for _, file := range found {
			name := filepath.Base(filepath.Dir(file))
			readmes["plugins."+name+"."] = folder + "/" + name + "/README.md"
		}
	}
	return readmes
}

// metricReadmes are the READMEs with a table of metrics, by the prefix of their names.
func metricReadmes() map[string]string {
	return map[string]string{
		"":                     "pipeline/middleware/doc.go",
		"millrace_deadletter_": "plugins/deadletter/README.md",
		"millrace_kafka_":      "plugins/kafka/README.md",
		"millrace_ledger_":     "handlers/promotion/ledger/README.md",
		"millrace_money_":      "handlers/promotion/money/README.md",
		"millrace_once_http_":  "plugins/once/oncehttp/README.md",
		"millrace_promotion_":  "handlers/promotion/README.md",
		"millrace_reclaim_":    "plugins/reclaim/README.md",
		"millrace_redis_":      "plugins/redis/README.md",
		"millrace_room_":       "handlers/waitingroom/README.md",
		"millrace_sse_":        "plugins/sse/README.md",
		"millrace_streams_":    "plugins/streams/README.md",
		"millrace_telemetry_":  "plugins/telemetry/README.md",
		"millrace_token_":      "plugins/token/README.md",
		"millrace_web_":        "plugins/web/README.md",
	}
}

// sections returns one section per README with the lines of the names that it explains.
func sections(lines, readmes map[string]string, head string) string {
	byReadme := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		longest := ""
		for prefix := range readmes {
			if strings.HasPrefix(name, prefix) && len(prefix) > len(longest) {
				longest = prefix
			}
		}
		byReadme[readmes[longest]] = append(byReadme[readmes[longest]], lines[name])
	}
	var page strings.Builder
	for _, readme := range slices.Sorted(maps.Keys(byReadme)) {
		fmt.Fprintf(&page, "\n## %s\n\n[Explanations](../%s).\n\n%s%s\n", filepath.Dir(readme), readme, head,
			strings.Join(byReadme[readme], "\n"))
	}
	return page.String()
}

// defaults returns the default of each setting; a zero value is empty.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "configs", "millrace.schema.json"))
	require.NoError(t, err)
	type branch struct {
		Properties map[string]json.RawMessage
		Default    any
	}
	list := map[string]string{}
	var walk func(raw json.RawMessage, path string)
	walk = func(raw json.RawMessage, path string) {
		var at branch
		require.NoError(t, json.Unmarshal(raw, &at))
		for key, under := range at.Properties {
			walk(under, strings.TrimPrefix(path+"."+key, "."))
		}
		if at.Properties != nil {
			return
		}
		switch value := at.Default.(type) {
		case nil:
			list[path] = ""
		case float64:
			list[path] = strconv.FormatFloat(value, 'f', -1, 64)
		default:
			list[path] = fmt.Sprint(value)
		}
	}
	walk(text, "")
	list["log.level"] = "info" // the zero value of its type
	require.Greater(t, len(list), 100)
	return list
}

func settingsPage(t *testing.T) string {
	t.Helper()
	const again = "plugins.promotion.stream.redis."
	lines := map[string]string{again + "*": "| `" + again + "*` | those of `plugins.redis` |"}
	for key, value := range defaults(t) {
		if strings.HasPrefix(key, again) {
			continue
		}
		if value != "" {
			value = "`" + value + "`"
		}
		lines[key] = "| `" + key + "` | " + value + " |"
	}
	return "# Settings\n\nEvery setting with its default. A setting without one is empty, 0 or false.\n" +
		"`make reference` writes this page; do not edit it.\n" +
		sections(lines, settingReadmes(t), "| key | default |\n|---|---|\n")
}

// metricLines returns the metrics that collectors describe, by name, as items of a list.
func metricLines(t *testing.T, collectors []prometheus.Collector) map[string]string {
	t.Helper()
	text := regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: ("(?:[^"\\]|\\.)*"), .*, variableLabels: \{(.*?)\}`)
	lines := map[string]string{}
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc, 1000)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			match := text.FindStringSubmatch(d.String())
			require.NotNil(t, match, d.String())
			help, err := strconv.Unquote(match[2])
			require.NoError(t, err, match[1])
			require.NotEmpty(t, help, match[1])
			suffix := unit(match[1])
			if match[3] != "" {
				suffix += ", by " + strings.ReplaceAll(match[3], ",", ", ")
			}
			lines[match[1]] = wrapped(fmt.Sprintf("- `%s`%s: %s", match[1], suffix, help))
		}
	}
	return lines
}

// wrapped returns an item of a list in lines of at most 100 characters.
func wrapped(item string) string {
	lines := []string{""}
	for word := range strings.FieldsSeq(item) {
		last := &lines[len(lines)-1]
		if utf8.RuneCountInString(*last+" "+word) > 100 {
			lines = append(lines, " ")
			last = &lines[len(lines)-1]
		}
		*last += " " + word
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

// unit returns the unit that the name of a metric has by convention, after a comma.
func unit(metric string) string {
	for _, u := range []struct{ suffix, unit string }{
		{"_timestamp_seconds", ", Unix time"}, {"_seconds", ", seconds"}, {"_seconds_total", ", seconds"}, {"_bytes", ", bytes"}, {"_bytes_total", ", bytes"},
	} {
		if strings.HasSuffix(metric, u.suffix) {
			return u.unit
		}
	}
	return ""
}

// allMetrics returns a line per metric of the plugins, the chain and the client of the Money API.
func allMetrics(t *testing.T) map[string]string {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, wire.New().Plugins()...)
	require.NoError(t, err)
	middleware.New(reg, middleware.Options{})
	config := oncehttp.DefaultConfig()
	config.URL = "http://127.0.0.1:1"
	client, err := money.New(config, nil)
	require.NoError(t, err)
	lines := metricLines(t, append(reg.Collectors(), client.Collectors()...))
	require.Greater(t, len(lines), 80)
	return lines
}

func metricsPage(t *testing.T) string {
	t.Helper()
	return "# Metrics\n\nEvery metric with its labels, its unit and its help text. Without a unit, it is a number.\n" +
		"The operations server adds those of Go, of the process, and\n" +
		"[`millrace_health_check_ok`](../plugins/telemetry/README.md#metrics), and the command `run`\n" +
		"[`millrace_build_info` and `millrace_instance_info`](../plugins/telemetry/README.md#metrics).\n" +
		"`make reference` writes this page; do not edit it.\n" +
		sections(allMetrics(t), metricReadmes(), "")
}

func TestReferencePagesAreUpToDate(t *testing.T) {
	for name, page := range map[string]string{"settings.md": settingsPage(t), "metrics.md": metricsPage(t)} {
		file := filepath.Join(top, "docs", name)
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
		}
		have, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, page, string(have), "docs/%s is out of date: run make reference", name)
	}
}
