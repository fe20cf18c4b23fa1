package web_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/telemetry"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// site is a plugin with handlers. Its service starts and stops with the others.
type site struct {
	web     *web.Plugin
	hub     *sse.Hub
	mount   func(s *site)
	started func()
	stopped func() // is waited for before the server of requests stops
}

func (*site) Name() string    { return "site" }
func (*site) Needs() []string { return []string{"token", "web"} }

func (s *site) Register(r *pipeline.Registry) error {
	s.mount(s)
	r.Service("site", s)
	return nil
}

func (s *site) Start(context.Context) error {
	if s.started != nil {
		s.started()
	}
	return nil
}

func (s *site) Stop(context.Context) error {
	if s.stopped != nil {
		s.stopped()
	}
	return nil
}

// rig is a process with the public server.
type rig struct {
	t        testing.TB
	web      *web.Plugin
	ops      *telemetry.Plugin
	registry *pipeline.Registry
	runtime  *pipeline.Runtime
	log      *pipelinetest.Buffer
	client   *http.Client
}

// newRig makes a process that has not started. configure may be nil.
func newRig(t testing.TB, configure func(*web.Config), mount func(s *site)) *rig {
	t.Helper()
	return newTracedRig(t, nil, configure, mount)
}

// startTraced starts a process with a collector of spans.
func startTraced(t testing.TB, tracer trace.TracerProvider, mount func(s *site)) *rig {
	t.Helper()
	r := newTracedRig(t, tracer, nil, mount)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	return r
}

// newTracedRig is newRig with a collector of spans; nil: none.
func newTracedRig(t testing.TB, tracer trace.TracerProvider, configure func(*web.Config), mount func(s *site)) *rig {
	t.Helper()
	tokens, streams := token.New(), sse.New()
	r := &rig{t: t, web: web.New(tokens, streams), ops: telemetry.New(), log: &pipelinetest.Buffer{}}
	r.ops.Settings().(*telemetry.Config).Listen = "127.0.0.1:0"
	c := r.web.Settings().(*web.Config)
	c.Listen, c.DrainWindow = "127.0.0.1:0", time.Second
	if configure != nil {
		configure(c)
	}
	require.NoError(t, c.Validate())
	s := &site{web: r.web, hub: streams.Hub("test"), mount: mount}
	var err error
	r.registry, err = pipeline.NewRegistry(pipeline.Env{
		Logger: slog.New(logs.WithTrace(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))),
		Tracer: tracer,
	}, r.ops, tokens, streams, r.web, s)
	require.NoError(t, err)
	require.NoError(t, r.registry.CheckCollectors())
	r.runtime = pipeline.NewRuntime(r.registry, pipeline.RuntimeOptions{StopTimeout: time.Minute})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return r
}

func start(t testing.TB, configure func(*web.Config), mount func(s *site)) *rig {
	t.Helper()
	r := newRig(t, configure, mount)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })
	return r
}

// reply is an answer that was read.
type reply struct {
	status int
	header http.Header
	body   string
}

func (a reply) word(t testing.TB) string {
	t.Helper()
	var refusal struct{ Error, Message string }
	require.NoError(t, json.Unmarshal([]byte(a.body), &refusal), a.body)
	require.NotEmpty(t, refusal.Message)
	return refusal.Error
}

// send sends a request with headers, name and value in turn. The header Host sets the host.
func (r *rig) send(method, path string, headers ...string) reply {
	r.t.Helper()
	answer := r.open(method, path, headers...)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(r.t, err)
	return reply{answer.StatusCode, answer.Header, string(body)}
}

func (r *rig) open(method, path string, headers ...string) *http.Response {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.web.Addr()+path, http.NoBody)
	require.NoError(r.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	answer, err := r.client.Do(request)
	require.NoError(r.t, err)
	return answer
}

// metric returns the value of a series of the plugin.
func (r *rig) metric(name string, labels map[string]string) float64 {
	r.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	for _, c := range r.registry.Collectors() {
		require.NoError(r.t, registry.Register(c))
	}
	families, err := registry.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			found := f.GetName() == name && len(m.GetLabel()) == len(labels)
			for _, l := range m.GetLabel() {
				found = found && labels[l.GetName()] == l.GetValue()
			}
			if found {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.FailNow(r.t, "no such series", "%s %v", name, labels)
	return 0
}

// text answers with a text.
func text(body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
}

// user answers with the user of the request.
func user() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := web.UserOf(r.Context())
		if !ok {
			u.ID = "nobody"
		}
		_, _ = io.WriteString(w, u.ID)
	})
}

// events answers with a stream that stays open.
func (s *site) events() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hub.Serve(w, r, func(_ context.Context, c *sse.Client) error {
			return c.Write(sse.Event{Name: "hello", Data: []byte("{}")})
		})
	})
}
