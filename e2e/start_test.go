package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/wire"
)

// embeddedSettings writes the settings of a service on embedded servers, with its files in a folder
// of the test. The servers that are there must answer within start_timeout, even if the machine stands
// still meanwhile.
func embeddedSettings(t *testing.T, servers *embedded.Servers) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "service.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
start_timeout: 15s
plugins:
  telemetry: {listen: ""}
  kafka: {brokers: [%q], dial_timeout: 1s}
  redis: {addrs: [%q], dial_timeout: 1s}
  deadletter: {store: {dsn: "sqlite:%[3]s/ledger.db"}}
  promotion:
    stream: {enabled: true}
    ledger: {dsn: "sqlite:%[3]s/ledger.db"}
    money_api: {simulator: {enabled: true}}
`, strings.Join(servers.KafkaAddrs(), ","), servers.RedisAddr(), dir), 0o600))
	return file
}

// unusedAddress returns an address where no server of any scenario listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	addr, err := freePort()
	require.NoError(t, err)
	return addr
}

// An unavailable server is exit code 3, whichever it is. A process manager tries again, and the
// message has the address.
func TestAServerThatIsAwayIsExitCode3(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	bin := binary(t)
	for name, setting := range map[string]string{
		"Kafka":                    "KAFKA__BROKERS=%s",
		"Redis":                    "REDIS__ADDRS=%s",
		"the streams' own Redis":   "PROMOTION__STREAM__REDIS__ADDRS=%s",
		"PostgreSQL, ledger":       "PROMOTION__LEDGER__DSN=postgres://u:secret@%s/millrace",
		"PostgreSQL, dead letters": "DEADLETTER__STORE__DSN=postgres://u:secret@%s/millrace",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			away := unusedAddress(t)
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, "run", "--config", embeddedSettings(t, servers))
			cmd.Env = append(os.Environ(), "MILLRACE__PLUGINS__"+fmt.Sprintf(setting, away), "MILLRACE__INSTANCE_ID="+strings.ReplaceAll(t.Name(), " ", "-"))
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, app.ExitUnavailable, cmd.ProcessState.ExitCode(), "%s", out)
			last := out[bytes.LastIndex(out, []byte("millrace: ")):]
			_, port, err := net.SplitHostPort(away)
			require.NoError(t, err)
			require.Contains(t, string(last), port, "the address")
			require.NotContains(t, string(out), "secret")
		})
	}
}

// saboteur is a service that takes the servers away when all services have started: the routes are
// opened next.
type saboteur struct {
	t       *testing.T
	servers *embedded.Servers
}

func (saboteur) Name() string { return "saboteur" }

func (s saboteur) Register(r *pipeline.Registry) error {
	r.Service("saboteur", s)
	return nil
}

func (s saboteur) Start(ctx context.Context) error { return s.servers.Stop(ctx) }
func (saboteur) Stop(context.Context) error        { return nil }

// Also a server that goes away during the start, between the services and the routes.
func TestAServerThatGoesAwayDuringTheStartIsExitCode3(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	for name, timeout := range map[string]string{"by start_timeout": "2s", "by the client's own limit": "10m"} {
		servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
		require.NoError(t, err)
		var out bytes.Buffer
		code := make(chan int, 1)
		plugins := append(wire.New().Plugins(), saboteur{t, servers})
		for _, p := range plugins {
			if k, ok := p.(*kafka.Plugin); ok {
				c, _ := k.Settings().(*kafka.Config)
				c.RequestTimeout, c.PublishTimeout = time.Second, 3*time.Second
			}
		}
		file := embeddedSettings(t, servers)
		go func() {
			code <- app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: plugins, Environments: wire.Environments(), Args: []string{"run", "--config", file},
				Environ: []string{"MILLRACE__START_TIMEOUT=" + timeout, "MILLRACE__STOP_TIMEOUT=5s"}, Stdout: &out, Stderr: &out,
			})
		}()
		select {
		case c := <-code:
			require.Equal(t, app.ExitUnavailable, c, "%s: %s", name, &out)
		case <-time.After(3 * time.Minute):
			require.FailNow(t, "it is still starting")
		}
	}
}

// A server that is absent at the start is waited for with a clear message, then the exit code is 3.
func TestAnAbsentServerIsNamed(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	unused, err := freePort()
	require.NoError(t, err)
	w := onServers(t, servers.Redis, simulator.Faults{})
	w.set("start_timeout", "8s") // in which the servers that are there must answer
	for _, tt := range []struct{ name, path, waiting string }{
		{"kafka", "plugins.kafka.brokers", "waiting for kafka"},
		{"redis", "plugins.redis.addrs", "waiting for redis"},
		{"postgres", "plugins.promotion.ledger.dsn", `"msg":"waiting for the database","plugin":"promotion","of":"ledger"`},
	} {
		// All three start before the first one is waited for.
		var address any = []string{unused}
		if tt.name == "postgres" {
			address = "postgres://postgres@" + unused + "/millrace?sslmode=disable"
		}
		in := w.launch(map[string]any{tt.path: address})
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			select {
			case <-in.done:
			case <-time.After(2 * time.Minute):
				require.FailNow(t, "it waits forever")
			}
			require.Equal(t, 3, in.cmd.ProcessState.ExitCode(), "%s", in.log)
			require.True(t, in.log.has(tt.waiting), "%s", in.log)
			require.True(t, in.log.has(unused), "the address is named:\n%s", in.log)
		})
	}
}

func TestAPortInUseIsNamed(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	w := onServers(t, "redis", simulator.Faults{})
	w.set("plugins.telemetry.listen", taken.Addr().String())
	in := w.launch(nil)
	select {
	case <-in.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "it runs without its port")
	}
	require.Equal(t, 2, in.cmd.ProcessState.ExitCode(), "%s", in.log)
	require.True(t, in.log.has(taken.Addr().String()), "%s", in.log)
	require.True(t, in.log.has("plugins.telemetry.listen"), "the setting is named:\n%s", in.log)
}

// Two processes under one name would steal each other's entries.
func TestALiveDuplicateIsRefused(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.CLI, tier.Redis)
	w := onServers(t, "redis", simulator.Faults{})
	w.start()
	twin := w.launch(map[string]any{"instance_id": "i1"})
	select {
	case <-twin.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "two instances under one name")
	}
	require.NotEqual(t, 0, twin.cmd.ProcessState.ExitCode())
	require.True(t, twin.log.has("i1"), "%s", twin.log)
}
