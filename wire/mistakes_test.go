package wire_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

// `validate` reports a mistake once, where it is, with what would be right.
func TestMistakesInSettings(t *testing.T) {
	t.Parallel()
	nothing := filepath.Join(t.TempDir(), "nothing.pem")
	require.NoError(t, os.WriteFile(nothing, []byte("nothing"), 0o600))
	const needed = "plugins.promotion.ledger.dsn: must be set: postgres://… or sqlite:/path\nplugins.promotion.money_api.url: must be set\n"
	for name, tc := range map[string]struct{ text, want string }{
		"plugins at the top": {
			"kafka: {brokers: [\"a:1\"]}\nkafak: {}\n",
			"kafka: unknown setting; did you mean \"plugins.kafka\"?\n" + needed + "kafak: unknown setting\n",
		},
		"no section of plugins": {"plugins: kafka\n", "plugins: expected a section, got \"kafka\"\n"},
		"no section of a plugin": {
			"plugins: {promotion: 5}\n",
			"plugins.promotion: expected a section, got 5\n",
		},
		"a level": {"log: {level: loud}\n", "log.level: expected debug, info, warn or error, got \"loud\"\n" + needed},
		"files that are absent": {
			`plugins:
  kafka: {tls: {enabled: true, ca_file: /absent.pem}}
  redis: {tls: {enabled: true, cert_file: /absent.pem, key_file: /absent.key}}
  promotion: {ledger: {dsn: "sqlite:a.db"}, money_api: {url: "https://a", ca_file: /absent.pem}}
`,
			"plugins.kafka.tls.ca_file: open /absent.pem: no such file or directory\n" +
				"plugins.redis.tls.cert_file: open /absent.pem: no such file or directory\n" +
				"plugins.promotion.money_api.ca_file: open /absent.pem: no such file or directory\n",
		},
		"files of something else": {
			strings.ReplaceAll(`plugins:
  kafka: {tls: {enabled: true, cert_file: FILE, key_file: FILE}}
  redis: {tls: {enabled: true, ca_file: FILE}}
  promotion: {ledger: {dsn: "sqlite:a.db"}, money_api: {url: "https://a", ca_file: FILE}}
`, "FILE", nothing),
			"plugins.kafka.tls.cert_file: file " + nothing + ": with the key in " + nothing + ": tls: failed to find any PEM data in certificate input\n" +
				"plugins.redis.tls.ca_file: file " + nothing + ": it contains no certificate\n" +
				"plugins.promotion.money_api.ca_file: file " + nothing + ": it contains no certificate\n",
		},
		"files that nothing reads": {
			"plugins:\n  kafka: {tls: {enabled: false, ca_file: /absent.pem}}\n  redis: {enabled: false, tls: {enabled: true, ca_file: /absent.pem}}\n" +
				"  promotion: {enabled: false}\n  reclaim: {enabled: false}\n",
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "mill.yaml")
			require.NoError(t, os.WriteFile(file, []byte(tc.text), 0o600))
			var stdout, stderr bytes.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: wire.New().Plugins(), Args: []string{"validate", "--config", file}, Environ: []string{}, Stdout: &stdout, Stderr: &stderr,
			})
			if tc.want == "" {
				require.Zero(t, code, stderr.String())
				return
			}
			require.Equal(t, app.ExitUsage, code)
			var got []string
			for line := range strings.Lines(strings.TrimPrefix(stderr.String(), "millrace: the settings have mistakes:\n")) {
				_, line, _ = strings.Cut(line, "mill.yaml:") // without the line number
				_, line, _ = strings.Cut(line, ": ")
				got = append(got, line)
			}
			require.Equal(t, tc.want, strings.Join(got, ""))
		})
	}
}
