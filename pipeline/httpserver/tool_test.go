package httpserver_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A client that sends no request, half of one, or none after its first is disconnected.
func TestAToolDisconnectsClientsThatSendNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request string
		after   time.Duration
	}{
		"nothing":          {"", 10 * time.Second},
		"half a header":    {"GET / HTTP/1.1\r\nHost", 10 * time.Second},
		"no body":          {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 30 * time.Second},
		"a second request": {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, accepted := net.Pipe()
				l := &one{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
				l.conn <- accepted
				s, limited := httpserver.Tool(l, http.NotFoundHandler(), slog.New(slog.DiscardHandler))
				served := make(chan error, 1)
				go func() { served <- s.Serve(limited) }()
				begin := time.Now()
				_, err := io.WriteString(client, c.request)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, client)
				require.NoError(t, err)
				require.Equal(t, c.after, time.Since(begin))
				require.NoError(t, s.Close())
				require.ErrorIs(t, <-served, http.ErrServerClosed)
			})
		})
	}
}

func TestAToolLimitsItsConnections(t *testing.T) {
	t.Parallel()
	var log pipelinetest.Buffer
	_, l := httpserver.NewTool(&arrivals{from: []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "end"}}, http.NotFoundHandler(), slog.New(slog.NewTextHandler(&log, nil)), 2)
	_, from := accept(t, l)
	require.Equal(t, []string{"192.0.2.1", "192.0.2.1"}, from)
	require.Contains(t, log.String(), `msg="connection refused" reason=full`)
	require.Equal(t, 1, strings.Count(log.String(), "\n"))
}
