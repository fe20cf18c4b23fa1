package reference_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// documented returns the defaults in a README's tables of settings, by key without its prefix.
// A cell with several defaults belongs to a cell with as many keys.
func documented(readme string) map[string]string {
	quoted := regexp.MustCompile("`([^`]*)`")
	list := map[string]string{}
	inside := false
	for line := range strings.Lines(readme) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) < 2 {
			inside = false
			continue
		}
		first, second := strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1])
		if first == "key" && second == "default" {
			inside = true
			continue
		}
		if !inside || strings.HasPrefix(first, "---") {
			continue
		}
		value, _, _ := strings.Cut(second, " (") // what profiles set
		values := strings.Split(strings.ReplaceAll(value, "`", ""), ", ")
		keys := quoted.FindAllStringSubmatch(first, -1)
		for i, key := range keys {
			if len(values) == len(keys) {
				value = values[i]
			}
			list[strings.TrimPrefix(key[1], "plugins.")] = strings.Trim(value, "`")
		}
	}
	return list
}

// differing returns the settings whose documented default is not that of the code.
func differing(prefix string, documented, code map[string]string) []string {
	var wrong []string
	for key, value := range documented {
		want, ours := code[prefix+key]
		if ours && !same(value, want) {
			wrong = append(wrong, fmt.Sprintf("%s%s: documented %q, in the code %q", prefix, key, value, want))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// same reports whether a documented default means a value of the code; empty is any zero value.
func same(documented, code string) bool {
	if code == "" {
		return slices.Contains([]string{"", "none", "empty", "false", "0", "0s", "[]"}, documented) ||
			strings.HasPrefix(documented, "the ") || strings.Contains(documented, "→") || strings.Contains(documented, "-")
	}
	a, errA := time.ParseDuration(documented)
	b, errB := time.ParseDuration(code)
	return documented == code || errA == nil && errB == nil && a == b
}

func TestDocumentedDefaultsAreThoseOfTheCode(t *testing.T) {
	code := defaults(t)
	explained := map[string]bool{"profile": true}
	for prefix, readme := range settingReadmes(t) {
		text, err := os.ReadFile(filepath.Join(top, readme))
		require.NoError(t, err)
		list := documented(string(text))
		for _, wrong := range differing(prefix, list, code) {
			t.Errorf("%s: %s", readme, wrong)
		}
		for key := range list {
			explained[prefix+key] = true
		}
	}
	for key := range code {
		elsewhere := strings.HasSuffix(key, ".enabled") || strings.Contains(key, ".stream.redis.") || strings.Contains(key, ".eventrouter.redis.") || strings.Contains(key, ".waitingroom.redis.") || strings.Contains(key, ".simulator.")
		for _, api := range []string{"plugins.webhook.", "plugins.web.auth.jwks_client.", "plugins.console.auth.jwks_client.", "plugins.promotion.money_api.", "plugins.waitingroom.event_service."} { // docs/operating.md has them once
			name, of := strings.CutPrefix(key, api)
			elsewhere = elsewhere || of && (strings.HasPrefix(name, "oauth2.") || strings.HasSuffix(name, "_file"))
		}
		if !explained[key] && !elsewhere {
			t.Errorf("no README has the setting %s in its table", key)
		}
	}
	require.Equal(t, []string{`p.a: documented "2s", in the code "1m"`, `p.c: documented "1", in the code ""`},
		differing("p.", documented("| key | default | |\n|---|---|---|\n| `a` | 2s | |\n| `b`, `c` | 60s, 1 | |\n\n| `d` | 1 |\n"),
			map[string]string{"p.a": "1m", "p.b": "1m", "p.c": "", "p.d": "2"}))
}
