package redispoll_test

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

func TestMain(m *testing.M) {
	logging.Disable() // the tests cut connections on purpose
	goleak.VerifyTestMain(m,
		// Watermill's suite reads through a multiplier whose pumps wait for ever on messages nobody takes.
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
		// After failed dials the library's pool looks for its server again, and notices within a second that it was closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	)
}

// server is one Redis to test against.
type server struct {
	addr string
	mini *miniredis.Miniredis // nil: a real one
}

// onServers runs a test on miniredis and on every real server that the environment names.
func onServers(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		m := miniredis.RunT(t)
		test(t, server{addr: m.Addr(), mini: m})
	})
	onRealServers(t, test)
}

// onRealServers leaves miniredis out, for what it can't do.
func onRealServers(t *testing.T, test func(t *testing.T, s server)) {
	t.Helper()
	for _, real := range []struct{ name, env string }{{"redis", "MILLRACE_TEST_REDIS"}, {"valkey", "MILLRACE_TEST_VALKEY"}} {
		t.Run(real.name, func(t *testing.T) {
			addr := os.Getenv(real.env)
			if addr == "" {
				t.Skipf("%s is not set: `make test` sets it, or give the host:port of a server", real.env)
			}
			test(t, server{addr: addr})
		})
	}
}

// client returns a client with the plugin's own settings, closed at the end of the test.
func (s server) client(t testing.TB, change ...func(*redispoll.ClientConfig)) redis.UniversalClient {
	t.Helper()
	cfg := redispoll.DefaultClientConfig()
	cfg.Addrs = []string{s.addr}
	for _, c := range change {
		c(&cfg)
	}
	c, err := redispoll.NewClient(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// stream returns a name that no other test uses; the stream is deleted at the end.
func (s server) stream(t testing.TB, c redis.UniversalClient) string {
	t.Helper()
	name := "redispoll-test:" + watermill.NewULID()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, c.Del(ctx, name).Err())
	})
	return name
}

// logger writes to the test's log.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}
