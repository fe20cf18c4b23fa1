package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	headerTimeout = 5 * time.Second
	readTimeout   = 30 * time.Second // of a complete request
	// writeStall is without progress: a profile takes as long as its client wants.
	writeStall  = 30 * time.Second
	addressPart = 4 // of all connections, the most of one address
)

type server struct {
	plugin   *Plugin
	registry *pipeline.Registry
	failed   chan error

	mu       sync.Mutex // guards what follows
	listener net.Listener
	http     *http.Server
	metrics  http.Handler
	probes   []*probe
	stopped  bool
	serving  sync.WaitGroup
	checking loop.Group // the runs of the checks, one loop each

	requests    httpserver.Requests
	connections *httpserver.Connections
	readTimeout time.Duration // of a complete request

	phase  atomic.Pointer[phase] // nil: starting
	served context.Context       // ends when the drain begins
	end    context.CancelFunc    // ends served
}

// phase says whether the handlers of other plugins are served.
type phase string

const (
	starting phase = "starting" // services of other plugins may not run yet
	running  phase = "running"
	draining phase = "draining" // to the end of the process
)

func (s *server) now() phase {
	if p := s.phase.Load(); p != nil {
		return *p
	}
	return starting
}

func (s *server) enter(p phase) { s.phase.Store(&p) }

// Running implements pipeline.Phased: the handlers of other plugins are served, and the checks run,
// from now on.
func (s *server) Running() {
	s.enter(running)
	var loops []func(context.Context)
	for _, p := range s.probes {
		loops = append(loops, p.measure)
	}
	_ = s.checking.Start(s.served, loops...) // its only error is that the server was stopped before
}

// Draining implements pipeline.Phased: the handlers of other plugins are not called any more, the
// contexts of their open requests end, and no check is started.
func (s *server) Draining() {
	s.enter(draining)
	s.end()
	_ = s.checking.Stop(s.served) // it has ended, so this does not wait; Stop does
}

// whileRunning answers 503 for a handler of another plugin unless all services run.
func (s *server) whileRunning(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := s.now(); p != running {
			w.Header().Set("Retry-After", "1")
			http.Error(w, string(p), http.StatusServiceUnavailable)
			return
		}
		s.untilDrain(h).ServeHTTP(w, r)
	})
}

// untilDrain ends the contexts of a handler's requests when the drain begins.
func (s *server) untilDrain(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.served, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

// own are the patterns of the server itself. They are registered like those of plugins, so that a
// second owner is an error.
func (s *server) own() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /{$}":             http.HandlerFunc(s.index),
		"GET /metrics":         http.HandlerFunc(s.serveMetrics),
		"GET /livez":           http.HandlerFunc(s.live),
		"GET " + readinessPath: s.ready(func(*probe) bool { return true }),
		// Not those of shared servers: without any instance, a load balancer refuses all users.
		"GET " + readinessPath + "/serving": s.ready(func(p *probe) bool { return p.Own }),
	}
}

// Start listens. Everything that was registered is served from then on.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.plugin.config
	if s.stopped || s.http != nil {
		return errors.New("telemetry: was started or stopped before")
	}
	if c.Listen == "" {
		return nil
	}
	if err := s.gather(); err != nil {
		return err
	}
	mux, err := s.mux(c.Pprof)
	if err != nil {
		return err
	}
	s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("telemetry: %s is in use: stop what listens there, or choose another plugins.telemetry.listen (empty: no server): %w", c.Listen, err)
	case err != nil:
		return fmt.Errorf("telemetry: listen on %s (plugins.telemetry.listen): %w", c.Listen, err)
	}
	s.http = &http.Server{
		Handler:           s.requests.Handler(mux),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       s.readTimeout,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          log.New(serverLog{s.plugin.log.Load()}, "", 0),
	}
	total := httpserver.Operations()
	limited := s.connections.Listen(s.listener, httpserver.Limits{
		Total: total, PerAddress: max(1, total/addressPart), Exempt: netip.Addr.IsLoopback,
	}, s.plugin.log.Load())
	s.serving.Go(func() {
		if err := s.http.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("telemetry: serve: %w", err)
		}
	})
	return nil
}

// serverLog writes the lines of net/http. A panic of a handler is an error of the program; other
// lines are about clients.
type serverLog struct{ log *slog.Logger }

// Write implements io.Writer. Each call is one line, or one panic with its stack.
func (l serverLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if what, stack, _ := strings.Cut(text, "\n"); strings.HasPrefix(what, "http: panic serving ") {
		l.log.Error("http handler panicked", slog.String("detail", what), slog.String("stack", stack))
		return len(line), nil
	}
	l.log.Debug("http server", slog.String("detail", text))
	return len(line), nil
}

func (s *server) gather() error {
	reg := prometheus.NewRegistry()
	all := append([]prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		health{s},
	}, s.registry.Collectors()...)
	var errs []error
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			errs = append(errs, fmt.Errorf("telemetry: metrics: %s: %w", describe(c), err))
		}
	}
	s.metrics = promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(s.plugin.log.Load().Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError, // one broken collector must not hide all others
		// For exemplars. Prometheus asks for this format, and other clients get the older one.
		EnableOpenMetrics: true,
	})
	for _, check := range s.registry.HealthChecks() {
		s.probes = append(s.probes, &probe{HealthCheck: check, interval: s.plugin.config.CheckInterval, timeout: s.plugin.config.CheckTimeout})
	}
	return errors.Join(errs...)
}

// describe names a collector by its first metric.
func describe(c prometheus.Collector) string {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	first := "a collector without descriptions"
	named := false
	for d := range descs { // to the end, so that the goroutine ends
		if !named {
			first, named = d.String(), true
		}
	}
	return first
}

// pprofPath is the path of the profiles.
const pprofPath = "/debug/pprof/"

func (s *server) mux(withPprof bool) (*http.ServeMux, error) {
	mux := http.NewServeMux()
	var errs []error
	own := s.own()
	for pattern, h := range s.registry.Handlers() {
		if own[pattern] == nil {
			h = s.whileRunning(h)
		}
		errs = append(errs, handle(mux, pattern, h))
	}
	if withPprof {
		for pattern, f := range map[string]http.HandlerFunc{
			pprofPath: pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
			"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
		} {
			errs = append(errs, handle(mux, pattern, s.untilDrain(f)))
		}
	}
	return mux, errors.Join(errs...)
}

// handle makes an error of what ServeMux panics about: a pattern that is malformed or in conflict.
func handle(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("telemetry: http pattern %q: %v", pattern, v)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// Stop ends the server. It waits for requests in flight and for running checks until ctx ends, but
// not for clients that are late with their request or do not read their answer.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.Draining() // for a caller that only stops
	if s.http == nil {
		return nil
	}
	var errs []error
	if err := s.requests.Stop(ctx, s.http); err != nil {
		errs = append(errs, fmt.Errorf("telemetry: stop: %w", err))
	}
	s.serving.Wait()
	if err := s.checking.Stop(ctx); err != nil {
		for _, p := range s.probes {
			if p.runs() {
				errs = append(errs, fmt.Errorf("telemetry: check %s has not returned: %w", p.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *server) Failed() <-chan error { return s.failed }

func (s *server) addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil || s.stopped {
		return ""
	}
	return s.listener.Addr().String()
}

func (s *server) serveMetrics(w http.ResponseWriter, r *http.Request) { s.metrics.ServeHTTP(w, r) }

// live says that the process can answer. Whether it does its work is readiness.
func (s *server) live(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // a client that has gone needs no answer
}

func (s *server) index(w http.ResponseWriter, _ *http.Request) {
	var paths []string
	for pattern := range s.registry.Handlers() {
		paths = append(paths, strings.TrimSuffix(pattern, "{$}"))
	}
	if s.plugin.config.Pprof {
		paths = append(paths, pprofPath)
	}
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(path(a), path(b)) })
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(strings.Join(paths, "\n") + "\n"))
}

// path cuts the method off a pattern.
func path(pattern string) string { return pattern[strings.LastIndexByte(pattern, ' ')+1:] }

var (
	_ pipeline.Failer = (*server)(nil)
	_ pipeline.Phased = (*server)(nil)
)
