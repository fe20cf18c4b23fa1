package wire_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

// remote is a service of which everything is on other machines, and protected.
const remote = `
plugins:
  kafka: {brokers: ["kafka-1:9093"], tls: {enabled: true}, sasl: {mechanism: SCRAM-SHA-512, user: mill, password: secret}}
  redis: {addrs: ["redis:6380"], tls: {enabled: true}, password: secret}
  promotion:
    ledger: {dsn: "postgres://u:p@db/millrace?sslmode=verify-full"}
    money_api: {url: "https://money.example.com", token: secret}
`

// Settings that send plain text over a network, or pay no real money, are refused unless a setting
// allows just that.
func TestUnsafeSettingsAreRefused(t *testing.T) {
	t.Parallel()
	const (
		kafka     = "MILLRACE__PLUGINS__KAFKA__"
		redis     = "MILLRACE__PLUGINS__REDIS__"
		ledger    = "MILLRACE__PLUGINS__PROMOTION__LEDGER__"
		money     = "MILLRACE__PLUGINS__PROMOTION__MONEY_API__"
		simulator = money + "SIMULATOR__"
		own       = "MILLRACE__PLUGINS__PROMOTION__STREAM__REDIS__"
	)
	for name, tc := range map[string]struct {
		environ []string
		allow   string // the setting that allows it
		want    string // empty: it is valid
	}{
		"protected": {},
		"Kafka's password": {
			[]string{kafka + "TLS__ENABLED=false"}, kafka + "ALLOW_PLAINTEXT_CREDENTIALS=true",
			"safe.yaml:3: plugins.kafka.sasl.password: must not go without TLS to brokers on other machines: set tls.enabled: true, or allow_plaintext_credentials: true in this section",
		},
		"Kafka here": {environ: []string{kafka + "TLS__ENABLED=false", kafka + "BROKERS=127.0.0.1:9092,localhost:9093"}},
		"Redis' password": {
			[]string{redis + "TLS__ENABLED=false"}, redis + "ALLOW_PLAINTEXT_CREDENTIALS=true",
			"safe.yaml:4: plugins.redis.password: must not go without TLS to servers on other machines: set tls.enabled: true",
		},
		"the streams' own Redis": {
			[]string{own + "ADDRS=other:6379", own + "PASSWORD=secret"}, own + "ALLOW_PLAINTEXT_CREDENTIALS=true",
			"plugins.promotion.stream.redis.password: must not go without TLS",
		},
		"Redis here": {environ: []string{redis + "TLS__ENABLED=false", redis + "ADDRS=[::1]:6379"}},
		"the Money API's token": {
			[]string{money + "URL=http://money.example.com"}, money + "ALLOW_PLAINTEXT_CREDENTIALS=true",
			"plugins.promotion.money_api.url: must be https:// because there is a token",
		},
		"the Money API here": {environ: []string{money + "URL=http://127.0.0.1:8089"}},
		"the ledger": {
			[]string{ledger + "DSN=postgres://u:p@db/millrace"}, ledger + "DSN=postgres://u:p@db/millrace?sslmode=disable",
			"plugins.promotion.ledger.dsn: must have an sslmode, because the server is on another machine: add sslmode=verify-full",
		},
		"the dead letters": {
			[]string{"MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=postgres://u:p@db/millrace"}, "MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=postgres://u:p@db/millrace?sslmode=disable",
			"plugins.deadletter.store.dsn: must have an sslmode",
		},
		"a simulator with real servers": {
			[]string{simulator + "ENABLED=true"}, simulator + "ALLOW_WITH_REAL_SERVERS=true",
			"plugins.promotion.money_api.simulator.enabled: must be false together with servers on other machines: payouts would be recorded as paid and nothing would be paid",
		},
		"a simulator in production": {
			[]string{
				"MILLRACE__PROFILE=production", simulator + "ENABLED=true", kafka + "BROKERS=127.0.0.1:9092", redis + "ADDRS=127.0.0.1:6379",
				ledger + "DSN=sqlite:ledger.db", "MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=", money + "TOKEN=",
			}, simulator + "ALLOW_WITH_REAL_SERVERS=true",
			"plugins.promotion.money_api.simulator.enabled: must be false in the profile production",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "safe.yaml")
			require.NoError(t, os.WriteFile(file, []byte(remote), 0o600))
			validate := func(command string, environ ...string) (int, string) {
				var out bytes.Buffer
				code := app.Main(t.Context(), app.Options{
					Name: "millrace", Plugins: wire.New().Plugins(), Environments: wire.Environments(), Profiles: wire.Profiles(), DefaultProfile: "embedded", Args: []string{command, "--config", file},
					Environ: environ, Stdout: &out, Stderr: &out,
				})
				return code, out.String()
			}
			code, out := validate("validate", tc.environ...)
			if tc.want == "" {
				require.Zero(t, code, out)
				return
			}
			require.Equal(t, app.ExitUsage, code, out)
			require.Contains(t, out, tc.want)
			require.NotContains(t, out, "u:p")
			code, out = validate("run", tc.environ...)
			require.Equal(t, app.ExitUsage, code, out)
			require.Contains(t, out, tc.want)
			code, out = validate("validate", append(tc.environ, tc.allow)...)
			require.Zero(t, code, out)
		})
	}
}
