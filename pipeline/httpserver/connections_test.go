package httpserver_test

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// arrivals is a listener whose connections come from addresses of the test. An address that is none
// is the error of a process without a free descriptor.
type arrivals struct {
	net.Listener
	from []string
}

func (a *arrivals) Accept() (net.Conn, error) {
	from := a.from[0]
	a.from = a.from[1:]
	switch from {
	case "exhausted":
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	case "end":
		return nil, net.ErrClosed
	}
	return &arrival{from: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 4711))}, nil
}

type arrival struct {
	net.Conn
	from   net.Addr
	closed int
}

func (a *arrival) RemoteAddr() net.Addr { return a.from }

func (a *arrival) Close() error {
	a.closed++
	return nil
}

// accept returns the addresses that were accepted until the listener ended.
func accept(t *testing.T, l net.Listener) (all []net.Conn, from []string) {
	t.Helper()
	for {
		c, err := l.Accept()
		if err != nil {
			require.ErrorIs(t, err, net.ErrClosed)
			return all, from
		}
		addr, err := netip.ParseAddrPort(c.RemoteAddr().String())
		require.NoError(t, err)
		all, from = append(all, c), append(from, addr.Addr().String())
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	exempt := func(a netip.Addr) bool { return netip.MustParsePrefix("10.0.0.0/8").Contains(a) }
	for name, c := range map[string]struct {
		limits httpserver.Limits
		from   []string
		want   []string
	}{
		"total": {httpserver.Limits{Total: 2}, []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"}, []string{"192.0.2.1", "192.0.2.1"}},
		"an address": {
			httpserver.Limits{Total: 9, PerAddress: 1},
			[]string{"192.0.2.1", "192.0.2.1", "192.0.2.2"}, []string{"192.0.2.1", "192.0.2.2"},
		},
		"a network of IPv6": {
			httpserver.Limits{Total: 9, PerAddress: 1},
			[]string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"}, []string{"2001:db8::1", "2001:db8:0:1::1"},
		},
		"IPv4 written as IPv6": {
			httpserver.Limits{Total: 9, PerAddress: 1}, []string{"192.0.2.1", "::ffff:192.0.2.1"}, []string{"192.0.2.1"},
		},
		"a proxy": {
			httpserver.Limits{Total: 3, PerAddress: 1, Exempt: exempt},
			[]string{"10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"}, []string{"10.0.0.1", "10.0.0.1", "10.0.0.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			connections := httpserver.NewConnections("test")
			source := &arrivals{from: append(c.from, "end")}
			l := connections.Listen(source, c.limits, slog.New(slog.DiscardHandler))
			open, from := accept(t, l)
			require.Equal(t, c.want, from)
			// Closed connections make room, once each.
			require.NoError(t, open[0].Close())
			require.NoError(t, open[0].Close())
			source.from = []string{c.want[0], c.want[0], "end"}
			_, again := accept(t, l)
			require.Equal(t, c.want[:1], again)
			require.NoError(t, testutil.CollectAndCompare(connections.Collectors()[0], strings.NewReader(
				"# HELP test_connections Connections of clients that are open.\n# TYPE test_connections gauge\ntest_connections "+string(rune('0'+len(c.want)))+"\n")))
		})
	}
}

// A process without a free descriptor says so, and its server goes on.
func TestNoFreeDescriptor(t *testing.T) {
	t.Parallel()
	var log pipelinetest.Buffer
	connections := httpserver.NewConnections("test")
	l := connections.Listen(&arrivals{from: []string{"exhausted", "exhausted", "192.0.2.1"}}, httpserver.Limits{Total: 1}, slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 {
		_, err := l.Accept()
		require.ErrorIs(t, err, syscall.EMFILE)
		failed, ok := err.(net.Error) //nolint:errorlint // net/http looks at it like this
		require.True(t, ok)
		require.True(t, failed.Temporary(), "net/http tries again") //nolint:staticcheck // net/http uses it
	}
	_, err := l.Accept()
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "one line in a minute")
	require.Contains(t, log.String(), `level=WARN msg="connection refused" reason=descriptors error="accept: too many open files"`)
	require.NoError(t, testutil.CollectAndCompare(connections.Collectors()[1], strings.NewReader(`
# HELP test_refused_connections_total Connections refused, by reason: full (limit of the server), address (limit of one address), descriptors (none is free).
# TYPE test_refused_connections_total counter
test_refused_connections_total{reason="address"} 0
test_refused_connections_total{reason="descriptors"} 2
test_refused_connections_total{reason="full"} 0
`)))
}

// Each reason has its own line of a minute, because what an operator does depends on the reason.
func TestEachReasonIsLogged(t *testing.T) {
	t.Parallel()
	var log pipelinetest.Buffer
	connections := httpserver.NewConnections("test")
	from := []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "exhausted"}
	l := connections.Listen(&arrivals{from: from}, httpserver.Limits{Total: 2, PerAddress: 1}, slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 {
		_, err := l.Accept()
		require.NoError(t, err)
	}
	_, err := l.Accept()
	require.ErrorIs(t, err, syscall.EMFILE)
	require.Equal(t, 3, strings.Count(log.String(), "\n"), log.String())
	for _, reason := range []string{"reason=address address=192.0.2.1:4711 limit=1", "reason=full address=192.0.2.3:4711 limit=2", "reason=descriptors"} {
		require.Contains(t, log.String(), `msg="connection refused" `+reason)
	}
}

func TestDescriptors(t *testing.T) {
	t.Parallel()
	for descriptors, want := range map[int]int{1: 1, 300: 150, 1024: 512, 4096: 3584, 1 << 20: 1<<20 - 512} {
		require.Equal(t, want, httpserver.Public(descriptors))
	}
	limit, limited := httpserver.Descriptors()
	require.Equal(t, limited, limit > 0)
	require.Positive(t, httpserver.Operations())
	require.LessOrEqual(t, httpserver.Operations(), 128)
}
