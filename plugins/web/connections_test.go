package web_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/web"
)

const getX = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n"

// requireClosed opens a connection that the server closes at once. The client may see that while it
// connects, or later.
func requireClosed(t testing.TB, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
		return
	}
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.ReadAll(c)
	require.False(t, isTimeout(err), "the connection stays open")
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	t.Parallel()
	mount := func(s *site) { s.web.Handle("GET /x", text("x")) }
	for reason, c := range map[string]struct {
		configure func(*web.Config)
		loopback  bool // counts as an address
	}{
		"full":    {func(c *web.Config) { c.MaxConnections, c.MaxConnectionsPerAddress = 2, 10 }, true},
		"address": {func(c *web.Config) { c.MaxConnections, c.MaxConnectionsPerAddress = 10, 2 }, true},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.configure, mount)
			r.web.CountLoopback()
			require.NoError(t, r.runtime.StartServices(t.Context()))
			t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
			one, two := dial(t, r, getX), dial(t, r, getX)
			requireLine(t, bufio.NewReader(one), "HTTP/1.1 200 OK\r")
			requireLine(t, bufio.NewReader(two), "HTTP/1.1 200 OK\r")
			require.Equal(t, 2.0, r.metric("millrace_web_connections", nil))
			for range 20 {
				requireClosed(t, r.web.Addr())
			}
			require.Equal(t, 20.0, r.metric("millrace_web_refused_connections_total", map[string]string{"reason": reason}))
			require.Equal(t, 1, strings.Count(r.log.String(), "connection refused"), "one line in a minute")
			require.Contains(t, r.log.String(), "level=WARN msg=\"connection refused\" plugin=web reason="+reason)
			require.NoError(t, one.Close())
			require.Eventually(t, func() bool { return r.metric("millrace_web_connections", nil) == 1 }, 2*time.Minute, time.Millisecond)
			require.Equal(t, "x", r.send("GET", "/x").body, "its place is free")
		})
	}
}

// The connections of a proxy are of many clients.
func TestTrustedProxiesHaveNoLimitPerAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *web.Config) { c.MaxConnectionsPerAddress, c.TrustedProxies = 1, []string{"127.0.0.1"} }, func(s *site) {
		s.web.Handle("GET /x", text("x"))
	})
	r.web.CountLoopback()
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	for range 3 {
		requireLine(t, bufio.NewReader(dial(t, r, getX)), "HTTP/1.1 200 OK\r")
	}
}

// Several users may be behind one address. Its connections are at least as many as its streams.
func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ total, streamsPerUser, want int }{
		{40_000, 10, 4000}, {512, 10, 100}, {150, 10, 75}, {2, 10, 2}, {1, 1, 1}, {512, 20_000, 512}, {40_000, 20_000, 20_000},
	} {
		require.Equal(t, c.want, web.PerAddress(c.total, c.streamsPerUser))
	}
}

// The limit of file descriptors bounds streams and connections.
func TestLimitsAndFileDescriptors(t *testing.T) {
	t.Parallel()
	begin := func(descriptors int, limited bool, configure func(*web.Config)) (*rig, error) {
		r := newRig(t, configure, func(s *site) {
			s.web.Handle("GET /x", text("x"))
			s.web.Handle("GET /events", s.events(), web.Stream())
		})
		r.web.SetDescriptors(descriptors, limited)
		err := r.runtime.StartServices(t.Context())
		t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
		return r, err
	}
	for want, configure := range map[string]func(*web.Config){
		"plugins.web.max_streams is 513, and the limit of file descriptors (1024) leaves 512 for clients: lower the setting, or raise the limit": func(c *web.Config) { c.MaxStreams = 513 },
		"plugins.web.max_connections is 513, and": func(c *web.Config) { c.MaxConnections = 513 },
	} {
		_, err := begin(1024, true, configure)
		require.ErrorContains(t, err, want)
		refused, ok := errors.AsType[*app.ExitError](err)
		require.True(t, ok)
		require.Equal(t, app.ExitUsage, refused.Code)
	}
	_, err := begin(1024, true, func(c *web.Config) { c.MaxStreams, c.MaxConnections = 512, 512 })
	require.NoError(t, err)
	_, err = begin(0, false, func(c *web.Config) { c.MaxStreams = 1_000_000 })
	require.NoError(t, err, "a system without the limit")

	// Without the settings, the descriptors decide: here for two streams in two connections.
	r, err := begin(4, true, nil)
	require.NoError(t, err)
	require.Contains(t, r.log.String(), `level=INFO msg="the limit of file descriptors permits fewer streams than usual" plugin=web descriptors=4 streams=2 usual=20000`)
	for range 2 {
		stream := r.open("GET", "/events")
		t.Cleanup(func() { _ = stream.Body.Close() })
		require.Equal(t, http.StatusOK, stream.StatusCode)
	}
	requireClosed(t, r.web.Addr())
	require.Equal(t, 1.0, r.metric("millrace_web_refused_connections_total", map[string]string{"reason": "full"}))
}
