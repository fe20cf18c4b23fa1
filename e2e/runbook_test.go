package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	inlineCode   = regexp.MustCompile("`([^`]+)`")
	settingPath  = regexp.MustCompile(`^plugins(\.[a-z_]+)+$`)
	emphasis     = regexp.MustCompile(`(?:^|[^*])\*([A-Z][^*]+)\*`)
	metricName   = regexp.MustCompile(`^millrace_[a-z_]+$`)
	quotedString = regexp.MustCompile(`"[^"]*"`)
)

// The commands with their flags, the settings, the panels and the metrics that the runbook names
// exist.
func TestTheRunbookNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../configs/RUNBOOK.md")
	require.NoError(t, err)
	schema, err := exec.Command(binary(t), "schema").Output()
	require.NoError(t, err)
	require.False(t, isSetting(t, schema, "plugins.kafka.bokers"), "a setting that nobody knows")
	require.NotEmpty(t, noCommand(t, "millrace campaign explian POINT 1 2"), "a command that nobody knows")
	require.NotEmpty(t, noCommand(t, "millrace campaign status POINT 1 --jsno"), "a flag that nobody knows")

	var metrics strings.Builder // TestDashboardsAndAlertsFitTheMetrics checks them
	panels := map[string]bool{}
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			panels[p.Title] = true
			for _, target := range p.Targets {
				metrics.WriteString(target.Expr + "\n")
			}
		}
	}
	seen := map[string]int{}
	for _, code := range inlineCode.FindAllStringSubmatch(string(text), -1) {
		switch code := strings.Join(strings.Fields(code[1]), " "); {
		case strings.HasPrefix(code, "millrace "):
			seen["command"]++
			if wrong := noCommand(t, code); wrong != "" {
				t.Errorf("%s: %s", code, wrong)
			}
		case settingPath.MatchString(code):
			seen["setting"]++
			if !isSetting(t, schema, code) {
				t.Errorf("%s is no setting", code)
			}
		case metricName.MatchString(code):
			seen["metric"]++
			if !strings.Contains(metrics.String(), code) {
				t.Errorf("no panel shows %s", code)
			}
		}
	}
	for _, title := range emphasis.FindAllStringSubmatch(string(text), -1) {
		seen["panel"]++
		if title := strings.Join(strings.Fields(title[1]), " "); !panels[title] {
			t.Errorf("no panel %q", title)
		}
	}
	for _, kind := range []string{"command", "setting", "metric", "panel"} {
		require.NotZero(t, seen[kind], "no %s was looked at", kind)
	}
}

// noCommand returns why the binary doesn't have a command line, by its help.
func noCommand(t *testing.T, line string) string {
	t.Helper()
	var words, flags []string
	for word := range strings.FieldsSeq(quotedString.ReplaceAllString(line, "TEXT")) {
		switch {
		case strings.HasPrefix(word, "--"):
			flags = append(flags, word)
		case len(flags) == 0 && word == strings.ToLower(word) && !strings.ContainsAny(word, "0123456789"):
			words = append(words, word)
		}
	}
	help, err := exec.Command(binary(t), append(words[1:], "--help")...).CombinedOutput()
	if err != nil {
		return string(help)
	}
	if !strings.Contains(string(help), "  "+strings.Join(words, " ")) {
		return "no such command"
	}
	for _, flag := range flags {
		if !strings.Contains(string(help), flag) {
			return "no flag " + flag
		}
	}
	return ""
}

// isSetting reports whether the JSON Schema of the settings has the path.
func isSetting(t *testing.T, schema []byte, path string) bool {
	t.Helper()
	type node struct {
		Ref        string                     `json:"$ref"`
		Properties map[string]json.RawMessage `json:"properties"`
		Defs       map[string]json.RawMessage `json:"$defs"`
	}
	var root node
	require.NoError(t, json.Unmarshal(schema, &root))
	at := root
	for key := range strings.SplitSeq(path, ".") {
		raw, known := at.Properties[key]
		if !known {
			return false
		}
		at = node{}
		require.NoError(t, json.Unmarshal(raw, &at))
		if name, ok := strings.CutPrefix(at.Ref, "#/$defs/"); ok {
			require.NoError(t, json.Unmarshal(root.Defs[name], &at))
		}
	}
	return true
}
