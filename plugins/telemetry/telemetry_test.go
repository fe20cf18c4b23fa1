package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// feature is a plugin registered after telemetry.
type feature struct {
	counter prometheus.Counter
	checks  map[string]func(context.Context) error
	own     map[string]func(context.Context) error
	offer   any
}

func newFeature() *feature {
	return &feature{
		counter: prometheus.NewCounter(prometheus.CounterOpts{Name: "feature_total", Help: "x"}),
		checks:  map[string]func(context.Context) error{},
	}
}

func (*feature) Name() string { return "feature" }

func (f *feature) Register(r *pipeline.Registry) error {
	r.Offer(f.offer)
	r.Collect(f.counter)
	r.HTTP("GET /feature/{id}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "feature "+r.PathValue("id"))
	}))
	for name, check := range f.own {
		r.HealthOwn(name, check)
	}
	for name, check := range f.checks {
		r.Health(name, check)
	}
	return nil
}

func settings(t *testing.T, p *telemetry.Plugin) *telemetry.Config {
	t.Helper()
	c, ok := p.Settings().(*telemetry.Config)
	require.True(t, ok)
	return c
}

// serve runs telemetry with f behind it on a free port and returns its base URL.
func serve(t *testing.T, f *feature, set ...func(*telemetry.Config)) string {
	t.Helper()
	p := telemetry.New()
	settings(t, p).Listen = "127.0.0.1:0"
	settings(t, p).CheckInterval = time.Minute // a result counts also after a while in which the machine stood still
	for _, s := range set {
		s(settings(t, p))
	}
	pipelinetest.Start(t, p, f)
	require.NotEmpty(t, p.Addr())
	require.Equal(t, map[string]string{"operations": "http://" + p.Addr()}, p.Announce())
	return "http://" + p.Addr()
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	resp, err := client.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(b)
}

// ready returns the answer of /readyz after each check has had a result, or while none runs.
func ready(t *testing.T, base string) (status int, r telemetry.Readiness) {
	t.Helper()
	require.Eventually(t, func() bool {
		var body string
		status, body = get(t, base+"/readyz?verbose")
		r = telemetry.Readiness{}
		require.NoError(t, json.Unmarshal([]byte(body), &r), body)
		for _, c := range r.Checks {
			if r.Phase == "running" && c.Measured.IsZero() {
				return false
			}
		}
		return true
	}, 2*time.Minute, time.Millisecond)
	return status, r
}

func TestServer(t *testing.T) {
	t.Parallel()
	f := newFeature()
	f.counter.Add(41)
	base := serve(t, f)

	status, body := get(t, base+"/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, want := range []string{"feature_total 41", "go_goroutines", "process_cpu_seconds_total", "millrace_telemetry_export_failures_total 0"} {
		require.Contains(t, body, want)
	}
	status, body = get(t, base+"/livez")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ok\n", body)
	_, body = get(t, base+"/feature/7")
	require.Equal(t, "feature 7", body, "handlers of plugins registered later")
	_, body = get(t, base+"/")
	require.Contains(t, body, "GET /feature/{id}\n")
	require.Contains(t, body, "GET /readyz\n")
	require.True(t, strings.HasPrefix(body, "GET /\n"), body)
	status, _ = get(t, base+"/debug/pprof/")
	require.Equal(t, http.StatusNotFound, status, "off unless asked for")
	status, _ = get(t, base+"/nothing")
	require.Equal(t, http.StatusNotFound, status)
}

// A load balancer reads only the checks of the instance itself: a server that all instances have
// lost must not leave it without any.
func TestReadyToServe(t *testing.T) {
	t.Parallel()
	f := newFeature()
	var own atomic.Bool
	f.checks["redis"] = func(context.Context) error { return errors.New("unavailable") }
	f.own = map[string]func(context.Context) error{"loops": func(context.Context) error {
		if own.Load() {
			return errors.New("no round")
		}
		return nil
	}}
	// The result changes, but is still good when the machine has stood still for a while.
	base := serve(t, f, func(c *telemetry.Config) { c.CheckInterval = 3 * time.Second })
	status, _ := ready(t, base)
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, body := get(t, base+"/readyz/serving")
	require.Equal(t, http.StatusOK, status, body)
	require.NotContains(t, body, "redis")
	own.Store(true)
	require.Eventually(t, func() bool {
		status, body = get(t, base+"/readyz/serving")
		return status == http.StatusServiceUnavailable
	}, 2*time.Minute, 10*time.Millisecond)
	require.Contains(t, body, "no round")
}

// Alerts see the checks of /readyz by a metric, also one that hangs.
func TestChecksAreAMetric(t *testing.T) {
	t.Parallel()
	f := newFeature()
	hang := make(chan struct{})
	f.checks["good"] = func(context.Context) error { return nil }
	f.checks["bad"] = func(context.Context) error { return errors.New("no progress") }
	f.checks["hanging"] = func(context.Context) error { <-hang; return nil }
	base := serve(t, f, func(c *telemetry.Config) { c.CheckTimeout = time.Second })
	t.Cleanup(func() { close(hang) }) // before the server stops, which waits for its checks
	require.Eventually(t, func() bool {
		_, body := get(t, base+"/metrics")
		return strings.Contains(body, `millrace_health_check_ok{check="good"} 1`) &&
			strings.Contains(body, `millrace_health_check_ok{check="bad"} 0`) && strings.Contains(body, `millrace_health_check_ok{check="hanging"} 0`)
	}, 2*time.Minute, 10*time.Millisecond)
}

func TestPprof(t *testing.T) {
	t.Parallel()
	base := serve(t, newFeature(), func(c *telemetry.Config) { c.Pprof = true })
	status, body := get(t, base+"/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "goroutine profile")
}

func TestReady(t *testing.T) {
	t.Parallel()
	t.Run("all good, with details", func(t *testing.T) {
		t.Parallel()
		f := newFeature()
		f.checks["kafka"] = func(context.Context) error { return nil }
		f.checks["promotion"] = func(ctx context.Context) error {
			telemetry.Detail(ctx, "oldest_unpaid_seconds", 1.5)
			telemetry.Detail(ctx, "no_json", make(chan int))
			return nil
		}
		base := serve(t, f)
		status, r := ready(t, base)
		require.Equal(t, http.StatusOK, status)
		require.True(t, r.Ready)
		require.True(t, r.Checks["kafka"].OK)
		require.InDelta(t, 1.5, r.Checks["promotion"].Details["oldest_unpaid_seconds"], 0)
		require.Contains(t, r.Checks["promotion"].Details, "no_json")
		_, short := get(t, base+"/readyz")
		require.Contains(t, short, `"promotion": {`)
		require.NotContains(t, short, "details", "an orchestrator that asks every few seconds gets none")
	})
	t.Run("one fails, one panics", func(t *testing.T) {
		t.Parallel()
		f := newFeature()
		f.checks["good"] = func(context.Context) error { return nil }
		f.checks["bad"] = func(context.Context) error { return errors.New("no progress for 3m") }
		f.checks["worse"] = func(context.Context) error { panic("nil map") }
		status, r := ready(t, serve(t, f))
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.False(t, r.Ready)
		require.True(t, r.Checks["good"].OK)
		require.Equal(t, "no progress for 3m", r.Checks["bad"].Error)
		require.Equal(t, "panic: nil map", r.Checks["worse"].Error)
	})
	t.Run("a check sees its time limit", func(t *testing.T) {
		t.Parallel()
		f := newFeature()
		f.checks["slow"] = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		status, r := ready(t, serve(t, f, func(c *telemetry.Config) { c.CheckTimeout = 20 * time.Millisecond }))
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.NotEmpty(t, r.Checks["slow"].Error)
	})
}

func TestDetailOutsideACheck(t *testing.T) {
	t.Parallel()
	require.NotPanics(t, func() { telemetry.Detail(t.Context(), "key", 1) })
}

func start(t *testing.T, plugins ...pipeline.Plugin) error {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, plugins...)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	t.Cleanup(func() { require.NoError(t, rt.Stop(context.Background())) })
	return rt.StartServices(t.Context())
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	t.Run("port in use", func(t *testing.T) {
		t.Parallel()
		other, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer other.Close()
		p := telemetry.New()
		settings(t, p).Listen = other.Addr().String()
		err = start(t, p)
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, other.Addr().String()+" is in use")
		require.ErrorContains(t, err, "plugins.telemetry.listen")
	})
	t.Run("a metric registered twice", func(t *testing.T) {
		t.Parallel()
		p := telemetry.New()
		settings(t, p).Listen = "127.0.0.1:0"
		f := newFeature()
		require.ErrorContains(t, start(t, p, f, also{f.counter}), "feature_total")
	})
	t.Run("a malformed pattern", func(t *testing.T) {
		t.Parallel()
		p := telemetry.New()
		settings(t, p).Listen = "127.0.0.1:0"
		require.ErrorContains(t, start(t, p, malformed{}), `http pattern "GET  no slash"`)
	})
}

type also struct{ counter prometheus.Counter }

func (also) Name() string { return "also" }
func (a also) Register(r *pipeline.Registry) error {
	r.Collect(a.counter)
	return nil
}

type malformed struct{}

func (malformed) Name() string { return "malformed" }
func (malformed) Register(r *pipeline.Registry) error {
	r.HTTP("GET  no slash", http.NotFoundHandler())
	return nil
}

func TestNoServerWithoutAnAddress(t *testing.T) {
	t.Parallel()
	p := telemetry.New()
	settings(t, p).Listen = ""
	require.NoError(t, start(t, p))
	require.Empty(t, p.Addr())
	require.Empty(t, p.Announce())
}

// Stop finishes the requests in flight and waits for the checks that run.
func TestStopFinishesRequestsAndChecks(t *testing.T) {
	t.Parallel()
	f := newFeature()
	asked, checked, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f.checks["slow"] = func(context.Context) error { close(checked); <-release; return nil }
	p := telemetry.New()
	settings(t, p).Listen = "127.0.0.1:0"
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p, f, page(func(w http.ResponseWriter) { close(asked); <-release; w.WriteHeader(http.StatusTeapot) }))
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.StartServices(t.Context()))
	base := "http://" + p.Addr()
	status := make(chan int, 1)
	go func() {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get(base + "/page")
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	<-asked
	<-checked
	stopped := make(chan error, 1)
	go func() { stopped <- rt.Stop(context.Background()) }()
	close(release)
	require.Equal(t, http.StatusTeapot, <-status)
	require.NoError(t, <-stopped)
	_, err = net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	require.Error(t, err)
}

// Stop names a check that does not return in time.
func TestStopNamesACheckThatHangs(t *testing.T) {
	t.Parallel()
	f := newFeature()
	checked, release := make(chan struct{}), make(chan struct{})
	f.checks["slow"] = func(context.Context) error { close(checked); <-release; return nil }
	p := telemetry.New()
	settings(t, p).Listen = "127.0.0.1:0"
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p, f)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.StartServices(t.Context()))
	<-checked
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorContains(t, rt.Stop(ctx), "check slow has not returned")
	close(release)
}

// page is a plugin with one page at /page.
type page func(http.ResponseWriter)

func (page) Name() string { return "page" }

func (p page) Register(r *pipeline.Registry) error {
	r.HTTP("GET /page", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { p(w) }))
	return nil
}

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{telemetry.New()} })
}

func TestValidate(t *testing.T) {
	t.Parallel()
	c := telemetry.Config{Listen: "9464", CheckTimeout: 0, OTLPEndpoint: "ann:p4ss@collector:4318", SampleRatio: 1.5}
	err := c.Validate()
	for _, want := range []string{
		`listen: must be host:port or empty, got "9464"`, "check_interval: must be > 0, got 0s", "check_timeout: must be > 0, got 0s",
		`otlp_endpoint: must be a URL such as http://127.0.0.1:4318, or empty`,
		"sample_ratio: must be from 0 to 1, got 1.5", "service_name: must not be empty",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "p4ss")
	c = telemetry.DefaultConfig()
	c.CheckTimeout = 4 * time.Second
	require.ErrorContains(t, c.Validate(), "check_timeout: must be at most 3 times check_interval (1s), because an older result counts as failed, got 4s")
}

// Prometheus asks for OpenMetrics, which is the format with exemplars.
func TestExemplarsAreServedToWhoAsks(t *testing.T) {
	t.Parallel()
	f := newFeature()
	adder, ok := f.counter.(prometheus.ExemplarAdder)
	require.True(t, ok)
	adder.AddWithExemplar(1, prometheus.Labels{"trace_id": "0af7651916cd43dd8448eb211c80319c"})
	base := serve(t, f)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/metrics", http.NoBody)
	require.NoError(t, err)
	r.Close = true
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(body), `feature_total 1.0 # {trace_id="0af7651916cd43dd8448eb211c80319c"} 1.0`)
	_, plain := get(t, base+"/metrics")
	require.Contains(t, plain, "feature_total 1\n")
}
