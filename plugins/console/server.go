package console

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second // of a complete request
	writeTimeout  = 60 * time.Second // of a request and its answer; doctor takes up to 20 seconds
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10 // bytes of the headers and the address of a request
	maxBody       = 16 << 10 // bytes of a form

	operatorsPart = 2 // of the connections of the operations server
	addressPart   = 4 // of all connections, the most of one address
)

// server is the service of the plugin.
type server struct {
	plugin   *Plugin
	registry *pipeline.Registry
	failed   chan error
	serving  sync.WaitGroup

	requests    httpserver.Requests
	connections *httpserver.Connections
	loads       *loads
	copies      *loads // of pages, for tabs that read theirs again
	looks       looks
	uses        *uses
	fetches     loop.Group // of the keys of the login
	origins     *http.CrossOriginProtection
	panels      pace // how long a panel is waited for
	asked       pace // the same for one that a person has asked for
	sources     pace // the same for a part of the home page
	export      pace // the same for a part of a download
	records     pace // the same for the audit of what is revealed
	refresh     pace // the same for a page of which tabs get copies
	patience    patience
	stall       time.Duration // in which a client must have taken a part of a download

	// From Start on.
	pages     []page
	actions   []action
	login     *login // nil: nobody signs in
	templates *template.Template
	masks     masks

	mu       sync.Mutex // guards what follows
	http     *http.Server
	listener net.Listener
	stopped  bool
}

func newServer(p *Plugin) *server {
	return &server{
		plugin: p, failed: make(chan error, 1), connections: httpserver.NewConnections("millrace_console"), loads: newLoads(maxLoads), copies: newLoads(maxCopies),
		uses: newUses(), origins: http.NewCrossOriginProtection(),
		panels:   pace{wait: 500 * time.Millisecond, run: 5 * time.Second, fresh: time.Second},
		asked:    pace{wait: 20 * time.Second, run: 20 * time.Second},
		sources:  pace{wait: 400 * time.Millisecond, run: 5 * time.Second, fresh: time.Second},
		records:  pace{wait: recordWait, run: recordWait},
		refresh:  pace{wait: 5 * time.Second, run: 5 * time.Second, fresh: time.Second, drop: true},
		export:   pace{wait: 10 * time.Second, run: 10 * time.Second},
		patience: patience{page: time.Second, api: 30 * time.Second}, stall: exportStall,
	}
}

// Start collects the pages. The server listens when all services have started.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.http != nil {
		return fmt.Errorf("console: %w", loop.ErrStarted)
	}
	c := s.plugin.config
	var err error
	if s.pages, err = collect(s.registry); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	if err = checkPrefix(c.Prefix, s.pages); err != nil {
		return fmt.Errorf("console: plugins.console.prefix: %w", err)
	}
	if s.actions, err = collectActions(s.registry); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	s.uses.logTo(s.plugin.log)
	s.masks = newMasks(c.MaskedFields)
	if s.login, err = newLogin(c, s.plugin.log); err != nil {
		return fmt.Errorf("console: plugins.console: %w", err)
	}
	certificate, err := c.TLS.Live("plugins.console.tls", s.plugin.log)
	if err != nil {
		return fmt.Errorf("console: plugins.console: %w", setting.FieldErrorsUnder("tls", err))
	}
	s.http = &http.Server{
		Handler: s.requests.Handler(s.guard(below(c.Prefix, s.mux()))), TLSConfig: certificate,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.plugin.log.Handler(), slog.LevelDebug),
	}
	if s.login == nil || s.login.keys == nil || !s.login.keys.Fetched() {
		return nil
	}
	return s.fetches.Start(ctx, s.login.keys.Run)
}

// Running implements pipeline.Phased: the server listens. An address that another process has is no reason
// to end a process that handles messages, so the console is then missing, and the log says so.
func (s *server) Running() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil || s.stopped {
		return
	}
	c := s.plugin.config
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", c.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		s.plugin.log.Warn("no console: its address is in use", slog.String("address", c.Listen),
			slog.String("remedy", "stop what listens there, or choose another plugins.console.listen"))
		return
	case err != nil:
		s.failed <- fmt.Errorf("console: listen on %s (plugins.console.listen): %w", c.Listen, err)
		return
	}
	s.listener = listener
	total := max(1, httpserver.Operations()/operatorsPart)
	limited := s.connections.Listen(listener, httpserver.Limits{
		Total: total, PerAddress: max(1, total/addressPart), Exempt: s.isExempt,
	}, s.plugin.log)
	s.serving.Go(func() {
		serve := s.http.Serve
		if s.http.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
		}
		if err := serve(limited); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("console: serve: %w", err)
		}
	})
}

// isExempt reports whether an address may have any number of connections: a trusted proxy has those of all its
// clients.
func (s *server) isExempt(a netip.Addr) bool {
	return a.IsLoopback() || s.login != nil && s.login.proxies.Contain(a)
}

// Draining implements pipeline.Phased. The pages are served until the stop, and no action begins any more.
func (s *server) Draining() { s.uses.drain() }

// Stop ends the server, the actions that run and what it reads. It waits for requests in progress until ctx ends, but not for
// clients that are late with their request or do not read their answer.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopped = true
	started := s.http
	s.mu.Unlock()
	var err error
	if stop := s.uses.stop(ctx); stop != nil {
		s.plugin.log.WarnContext(ctx, "an action has not returned", logs.Err(stop))
	}
	for _, l := range []*loads{s.copies, s.loads} {
		if stop := l.stop(ctx); stop != nil {
			s.plugin.log.WarnContext(ctx, "a panel has not returned", logs.Err(stop))
		}
	}
	if started != nil {
		if stop := s.requests.Stop(ctx, started); stop != nil {
			err = fmt.Errorf("console: stop: %w", stop)
		}
	}
	s.serving.Wait()
	if stop := s.fetches.Stop(ctx); stop != nil {
		err = errors.Join(err, fmt.Errorf("console: stop: %w", stop))
	}
	return err
}

// Failed implements pipeline.Failer.
func (s *server) Failed() <-chan error { return s.failed }

func (s *server) addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil || s.stopped {
		return ""
	}
	return s.listener.Addr().String()
}

var (
	_ pipeline.Failer = (*server)(nil)
	_ pipeline.Phased = (*server)(nil)
)
