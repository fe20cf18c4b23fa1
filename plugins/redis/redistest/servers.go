// Package redistest gives tests a Redis: a server of each kind, a proxy in front of it, and a view
// of its clients' commands.
package redistest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// VerifyTestMain runs the tests of a package, and fails when goroutines are left after them.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	logging.Disable() // tests cut connections on purpose
	goleak.VerifyTestMain(m, append(options,
		// After failed dials the library's pool pings its server, and notices within a second that
		// it was closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
	)...)
}

// Server is one Redis to test against.
type Server struct {
	Name string               // miniredis, redis or valkey
	Addr string               // host:port
	Mini *miniredis.Miniredis // nil: a real server
}

// Each runs the test on miniredis, Redis and Valkey, as t/miniredis, t/redis and t/valkey. Package
// tier chooses the servers of a run.
func Each(t *testing.T, test func(t *testing.T, s Server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		tier.Embedded(t, "redis")
		test(t, Mini(t))
	})
	EachReal(t, test)
}

// Both is Each for a conformance suite, which `make test` runs on miniredis and on Redis.
func Both(t *testing.T, test func(t *testing.T, s Server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		tier.Embedded(t)
		test(t, Mini(t))
	})
	EachReal(t, test)
}

// EachClient is Each with a client of the server.
func EachClient(t *testing.T, test func(t *testing.T, c goredis.UniversalClient)) {
	t.Helper()
	Each(t, func(t *testing.T, s Server) { test(t, s.Client(t)) })
}

// EachReal is Each without miniredis.
func EachReal(t *testing.T, test func(t *testing.T, s Server)) {
	t.Helper()
	for _, name := range []string{"redis", "valkey"} {
		t.Run(name, func(t *testing.T) { test(t, Real(t, name)) })
	}
}

// Real returns the real server redis or valkey.
func Real(t testing.TB, name string) Server {
	t.Helper()
	return Server{Name: name, Addr: tier.Real(t, name)}
}

// Mini starts a miniredis for one test. Keys expire in it as time passes, as in a real server.
func Mini(t testing.TB) Server {
	t.Helper()
	mini := miniredis.RunT(t)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case now := <-tick.C:
				mini.FastForward(now.Sub(last))
				last = now
			case <-quit:
				return
			}
		}
	}()
	t.Cleanup(func() { close(quit); <-done })
	return Server{Name: "miniredis", Addr: mini.Addr(), Mini: mini}
}

// Client returns a client with Options. It is closed at the end of the test.
func (s Server) Client(t testing.TB, change ...func(*goredis.Options)) *goredis.Client {
	t.Helper()
	options := Options(s.Addr)
	for _, f := range change {
		f(options)
	}
	c := goredis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// Timeout is how long a client of a test waits for a server. A machine that stands still for less sends no command twice.
const Timeout = 30 * time.Second

// Options are those of redis.NewClient with default settings, but for Timeout. This package can't call it, because
// tests inside the package redis use this one; a test of redis compares the two.
func Options(addr string) *goredis.Options {
	return &goredis.Options{
		Addr: addr, Protocol: 2, MaxRetries: 3, DialTimeout: 3 * time.Second, ReadTimeout: Timeout, WriteTimeout: Timeout,
		DialerRetries: 1, ContextTimeoutEnabled: true, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Stream returns a stream name that no other test uses. Key and companion are deleted at the end of
// the test.
func Stream(t testing.TB, c goredis.Cmdable) string {
	t.Helper()
	name := "test:" + watermill.NewULID()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, c.Del(ctx, name).Err())
		require.NoError(t, c.Del(ctx, "{"+name+"}:meta").Err())
		require.NoError(t, c.Del(ctx, "{"+name+"}:due").Err())
	})
	return name
}

// Prefix returns a prefix of key names that no other test uses. Its keys, and those in a hash tag,
// are deleted at the end of the test.
func Prefix(t testing.TB, c goredis.Cmdable) string {
	t.Helper()
	prefix := "test-" + watermill.NewULID()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		for _, pattern := range []string{prefix + "*", "{" + prefix + "*", "millrace:domain:" + prefix + "*"} {
			if keys := c.Keys(ctx, pattern).Val(); len(keys) > 0 {
				c.Del(ctx, keys...)
			}
		}
	})
	return prefix
}

// Eventually fails the test when cond stays false for a minute.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); <-time.After(2 * time.Millisecond) {
		require.True(t, time.Now().Before(end), what)
	}
}

// Logger writes to the test's log.
func Logger(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(testWriter{t}, nil)) }

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}
