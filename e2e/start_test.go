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

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/wire"
)

// onHome writes settings of a service on an embedded home's servers, with its files in a folder of the test.
func onHome(t *testing.T, home *embedded.Home) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "service.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
start_timeout: 2s
plugins:
  telemetry: {listen: ""}
  kafka: {brokers: [%q], dial_timeout: 1s}
  redis: {addrs: [%q], dial_timeout: 1s}
  deadletter: {store: {dsn: "sqlite:%[3]s/ledger.db"}}
  promotion:
    stream: {enabled: true}
    ledger: {dsn: "sqlite:%[3]s/ledger.db"}
    money_api: {simulator: {enabled: true}}
`, strings.Join(home.KafkaAddrs(), ","), home.RedisAddr(), dir), 0o600))
	return file
}

// nobody returns an address at which nothing listens, for as long as the test takes.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	// Bound and never accepted from would answer; closed, the port is free for a moment that is long enough.
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// A server that is away is exit code 3, whichever it is: a process manager tries again, and a person sees its address.
func TestAServerThatIsAwayIsExitCode3(t *testing.T) {
	home, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, home.Stop(context.Background())) })
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
			away := nobody(t)
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, bin, "run", "--config", onHome(t, home))
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

// saboteur is a service that takes the servers away when all services have started: the routes are opened next.
type saboteur struct {
	t    *testing.T
	home *embedded.Home
}

func (saboteur) Name() string { return "saboteur" }

func (s saboteur) Register(r *pipeline.Registry) error {
	r.Service("saboteur", s)
	return nil
}

func (s saboteur) Start(ctx context.Context) error { return s.home.Stop(ctx) }
func (saboteur) Stop(context.Context) error        { return nil }

// Also a server that goes away during the start, between the services and the routes.
func TestAServerThatGoesAwayDuringTheStartIsExitCode3(t *testing.T) {
	t.Parallel()
	for name, timeout := range map[string]string{"by start_timeout": "2s", "by the client's own limit": "10m"} {
		home, err := embedded.Start(t.Context(), embedded.Config{}, nil)
		require.NoError(t, err)
		var out bytes.Buffer
		code := make(chan int, 1)
		plugins := append(wire.New().Plugins, saboteur{t, home})
		for _, p := range plugins {
			if k, ok := p.(*kafka.Plugin); ok {
				c, _ := k.Settings().(*kafka.Config)
				c.RequestTimeout, c.PublishTimeout = time.Second, 3*time.Second
			}
		}
		file := onHome(t, home)
		go func() {
			code <- app.Main(t.Context(), app.Options{
				Name: "millrace", Plugins: plugins, Homes: wire.Homes(), Args: []string{"run", "--config", file},
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
