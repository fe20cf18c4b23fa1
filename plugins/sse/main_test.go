package sse_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a hub behind an HTTP server with connections in memory, in a bubble of synctest.
type rig struct {
	t       testing.TB
	plugin  *sse.Plugin
	hub     *sse.Hub
	runtime *pipeline.Runtime
	metrics *prometheus.Registry
	conns   chan net.Conn
	client  *http.Client
	// begin is that of all streams; joined gets each client whose begin has returned.
	begin  func(context.Context, *sse.Client) error
	joined chan *sse.Client
}

// bubble runs a test with a rig, which has stopped at the end.
func bubble(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		test(t, r)
	})
}

// newHub returns a rig that is not started.
func newHub(t testing.TB) *rig { return newHubWithLog(t, pipelinetest.Logger(t)) }

func newHubWithLog(t testing.TB, log *slog.Logger) *rig {
	r := &rig{t: t, plugin: sse.New(), conns: make(chan net.Conn), joined: make(chan *sse.Client, 100_000), metrics: prometheus.NewRegistry()}
	r.hub = r.plugin.Hub("jobs")
	registry, err := pipeline.NewRegistry(pipeline.Env{Logger: log}, r.plugin, &server{rig: r})
	require.NoError(t, err)
	r.metrics.MustRegister(registry.Collectors()...)
	r.runtime = pipeline.NewRuntime(registry, pipeline.RuntimeOptions{})
	return r
}

func newRig(t testing.TB) *rig {
	r := newHub(t)
	r.start()
	return r
}

func (r *rig) start() {
	require.NoError(r.t, r.runtime.StartServices(r.t.Context()))
	r.client = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return r.dial(), nil
	}}}
}

func (r *rig) dial() net.Conn {
	here, there := net.Pipe()
	r.conns <- there
	return here
}

func (r *rig) stop() {
	require.NoError(r.t, r.runtime.Stop(context.Background()))
	r.client.CloseIdleConnections()
	synctest.Wait()
}

func (r *rig) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.hub.Serve(w, req, func(ctx context.Context, c *sse.Client) error {
		if r.begin != nil {
			if err := r.begin(ctx, c); err != nil {
				return err
			}
		}
		r.joined <- c
		return nil
	})
}

// connect opens a stream and returns its client, and what it reads.
func (r *rig) connect() (*sse.Client, *reading) {
	r.t.Helper()
	s := r.open("")
	return <-r.joined, s
}

// hang opens a stream whose connection reads the beginning of the response, and nothing more.
func (r *rig) hang() *sse.Client {
	r.t.Helper()
	conn := r.dial()
	r.t.Cleanup(func() { _ = conn.Close() })
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: hub\r\n\r\n"))
	require.NoError(r.t, err)
	_, err = conn.Read(make([]byte, 1000))
	require.NoError(r.t, err)
	return <-r.joined
}

// reading is a response whose events are read all the time.
type reading struct {
	*http.Response
	mu     sync.Mutex
	events []ssetest.Event
	ended  time.Time // zero while the response is open
	reader *ssetest.Reader
	cancel context.CancelFunc
}

func (r *rig) open(query string) *reading {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://hub/"+query, nil)
	require.NoError(r.t, err)
	resp, err := r.client.Do(req) //nolint:bodyclose // read closes it
	require.NoError(r.t, err)
	s := &reading{Response: resp, reader: ssetest.NewReader(resp.Body, ""), cancel: cancel}
	go s.read()
	return s
}

func (s *reading) read() {
	defer s.Body.Close()
	for {
		e, err := s.reader.Next()
		s.mu.Lock()
		if err != nil {
			s.ended = time.Now()
			s.mu.Unlock()
			return
		}
		s.events = append(s.events, e)
		s.mu.Unlock()
	}
}

// got returns what has arrived when nothing more is on the way.
func (s *reading) got() []ssetest.Event {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events
}

// end returns when the response ended; zero if it is open.
func (s *reading) end() time.Time {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// server is the plugin of the HTTP server.
type server struct {
	rig  *rig
	http *http.Server
	done chan error
}

func (*server) Name() string { return "web" }

func (s *server) Register(r *pipeline.Registry) error {
	r.Service("web", s)
	return nil
}

func (s *server) Start(context.Context) error {
	s.http, s.done = &http.Server{Handler: s.rig, Protocols: new(http.Protocols)}, make(chan error, 1)
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	go func() { s.done <- s.http.Serve(listener{s.rig.conns}) }()
	return nil
}

func (s *server) Stop(context.Context) error {
	close(s.rig.conns)
	<-s.done
	return s.http.Close()
}

// listener accepts connections in memory.
type listener struct{ conns chan net.Conn }

func (l listener) Accept() (net.Conn, error) {
	conn, ok := <-l.conns
	if !ok {
		return nil, errors.New("closed")
	}
	return conn, nil
}

func (listener) Close() error   { return nil }
func (listener) Addr() net.Addr { return &net.UnixAddr{} }

// metric returns a value of the hub; label is its other label.
func (r *rig) metric(name, label string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	require.NoError(r.t, err)
	for _, family := range families {
		if family.GetName() != "millrace_sse_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			if label == "" || m.GetLabel()[1].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
