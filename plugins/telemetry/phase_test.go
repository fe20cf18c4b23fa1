package telemetry_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// site is a plugin with a stream for clients and a service behind it.
type site struct {
	t    *testing.T
	base func() string
	stop func()
}

func (*site) Name() string { return "site" }

func (s *site) Register(r *pipeline.Registry) error {
	r.HTTP("GET /events", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "open\n")
		_ = http.NewResponseController(w).Flush() // the client reads it or is gone
		<-r.Context().Done()
	}))
	r.HTTP("GET /panic", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("nil client") }))
	r.Service("site", s)
	return nil
}

func (s *site) Start(context.Context) error {
	status, _ := get(s.t, s.base()+"/events")
	require.Equal(s.t, http.StatusServiceUnavailable, status, "the service does not run")
	status, r := ready(s.t, s.base())
	require.Equal(s.t, http.StatusServiceUnavailable, status)
	require.Equal(s.t, "starting", r.Phase)
	return nil
}

func (s *site) Stop(context.Context) error { s.stop(); return nil }

// lines keeps what is logged, as JSON.
type lines chan []byte

func (l lines) Write(line []byte) (int, error) {
	l <- []byte(string(line))
	return len(line), nil
}

func TestPhases(t *testing.T) {
	t.Parallel()
	p := telemetry.New()
	settings(t, p).Listen = "127.0.0.1:0"
	base := func() string { return "http://" + p.Addr() }
	stopped := make(chan struct{})
	s := &site{t: t, base: base, stop: func() {
		defer close(stopped)
		status, r := ready(t, base())
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "draining", r.Phase)
		status, body := get(t, base()+"/events")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "draining\n", body)
		status, _ = get(t, base()+"/livez")
		require.Equal(t, http.StatusOK, status)
		status, _ = get(t, base()+"/metrics")
		require.Equal(t, http.StatusOK, status)
	}}
	logged := make(lines, 100)
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewJSONHandler(logged, nil))}, p, s)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.StartServices(t.Context()))
	status, r := ready(t, base())
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "running", r.Phase)

	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, err = client.Get(base() + "/panic") //nolint:bodyclose // there is none
	require.Error(t, err)
	line := <-logged
	var entry struct{ Level, Msg, Detail, Stack string }
	require.NoError(t, json.Unmarshal(line, &entry))
	require.Equal(t, "ERROR", entry.Level)
	require.Equal(t, "http handler panicked", entry.Msg)
	require.Contains(t, entry.Detail, "nil client")
	require.Contains(t, entry.Stack, "phase_test.go")

	// A client that never ends its stream.
	stream, err := client.Get(base() + "/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	first, err := bufio.NewReader(stream.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "open", strings.TrimSpace(first))
	require.NoError(t, rt.Stop(context.Background()), "the stream ends with the drain")
	<-stopped
}

// route is a plugin with one route.
type route struct {
	from   pipeline.Source
	handle func()
}

func (route) Name() string { return "route" }

func (p route) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{Name: "route", From: p.from, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, Handle: func(*message.Message) ([]*message.Message, error) {
		p.handle()
		return nil, nil
	}})
	return nil
}

// The first moment of the drain: a route still has a message in flight, no service has been
// stopped.
func TestNotReadyFromTheFirstMomentOfTheDrain(t *testing.T) {
	t.Parallel()
	p, entered, release := telemetry.New(), make(chan struct{}), make(chan struct{})
	settings(t, p).Listen = "127.0.0.1:0"
	feed := pipelinetest.NewFeed("in")
	stop := pipelinetest.StartUntil(t, middleware.Options{}, p, route{feed, func() { close(entered); <-release }})
	feed.SendPayloads("1")
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	require.Eventually(t, func() bool { _, r := ready(t, "http://"+p.Addr()); return r.Phase == "draining" }, 2*time.Minute, 10*time.Millisecond)
	require.Empty(t, stopped, "it still drains")
	close(release)
	require.NoError(t, <-stopped)
}
