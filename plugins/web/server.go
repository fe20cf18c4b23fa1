package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	idleTimeout = 2 * time.Minute
	maxHeader   = 16 << 10 // bytes of the headers and the address of a request

	defaultStreams       = 20_000        // with max_streams 0
	connectionsPerStream = 2             // with max_connections 0: browsers keep one for other requests
	leastOther           = 100           // connections without a stream, with max_connections 0
	addressPart          = 10            // of max_connections, with max_connections_per_address 0
	leastAddress         = 100           // with max_connections_per_address 0: the users of an office
	unlimited            = math.MaxInt32 // descriptors

	// Of HTTP/2. A connection without an answer to a ping is closed.
	maxRequests = 100 // of one connection at the same time
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	writeByte   = 10 * time.Second // without any byte written
)

// server is the service of the plugin.
type server struct {
	plugin  *Plugin
	wrong   []error // of Handle
	failed  chan error
	loops   loop.Group
	serving sync.WaitGroup

	requests    httpserver.Requests
	connections *httpserver.Connections
	limits      httpserver.Limits // from Start on

	draining atomic.Bool

	mu       sync.Mutex // guards what follows
	http     *http.Server
	listener net.Listener
	stopped  bool
}

func newServer(p *Plugin) *server {
	return &server{plugin: p, failed: make(chan error, 1), connections: httpserver.NewConnections("millrace_web")}
}

// Start checks the patterns and the certificate. The server listens when all services have started.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.http != nil {
		return fmt.Errorf("web: %w", loop.ErrStarted)
	}
	if len(s.plugin.mounts) == 0 {
		return nil
	}
	if err := s.limit(ctx); err != nil {
		return err
	}
	if err := s.plugin.build(ctx); err != nil {
		return err
	}
	certificate, err := s.plugin.config.TLS.Live("plugins.web.tls", s.plugin.log)
	if err != nil {
		return fmt.Errorf("web: plugins.web: %w", setting.FieldErrorsUnder("tls", err))
	}
	s.http = &http.Server{
		Handler: s.requests.Handler(http.HandlerFunc(s.plugin.serve)), TLSConfig: certificate, Protocols: &http.Protocols{},
		// Refused requests have these limits, too: net/http reads their bodies before it answers.
		ReadHeaderTimeout: s.plugin.headerTimeout, ReadTimeout: s.plugin.bodyTimeout,
		WriteTimeout: s.plugin.bodyTimeout + s.plugin.writeTimeout, // it begins with the body
		IdleTimeout:  idleTimeout, MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxRequests, SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: writeByte,
		},
		// Its lines are about clients; panics are logged by the plugin.
		ErrorLog: slog.NewLogLogger(s.plugin.log.Handler(), slog.LevelDebug),
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetHTTP2(certificate != nil)
	s.http.Protocols.SetUnencryptedHTTP2(certificate == nil)
	return nil
}

// limit finds the limits of streams and connections, and compares them with the file descriptors
// that the process may have.
func (s *server) limit(ctx context.Context) error {
	c := s.plugin.config
	descriptors, limit := s.plugin.clients()
	if setting, value, over := c.over(limit); over {
		return app.Usage("web: plugins.web.%s is %d, and the limit of file descriptors (%d) leaves %d for clients: "+
			"lower the setting, or raise the limit (ulimit -n, LimitNOFILE of systemd)", setting, value, descriptors, limit)
	}
	s.plugin.maxStreams = c.streams(limit)
	if s.plugin.maxStreams < defaultStreams && c.MaxStreams == 0 {
		s.plugin.log.InfoContext(ctx, "the limit of file descriptors permits fewer streams than usual",
			slog.Int("descriptors", descriptors), slog.Int("streams", s.plugin.maxStreams), slog.Int("usual", defaultStreams))
	}
	streams := s.plugin.maxStreams
	total := cmp.Or(c.MaxConnections, min(max(connectionsPerStream*streams, streams+leastOther), limit))
	s.limits = httpserver.Limits{
		Total: total, PerAddress: cmp.Or(c.MaxConnectionsPerAddress, perAddress(total, c.MaxStreamsPerUser)), Exempt: s.plugin.manyClients,
	}
	return nil
}

// clients returns the limit of file descriptors, and how many of them are for clients.
func (p *Plugin) clients() (descriptors, limit int) {
	descriptors, limited := p.descriptors()
	if !limited {
		descriptors = unlimited
	}
	return descriptors, httpserver.Public(descriptors)
}

// over returns the setting that is above the number of descriptors for clients.
func (c *Config) over(limit int) (setting string, value int, over bool) {
	switch {
	case c.MaxStreams > limit:
		return "max_streams", c.MaxStreams, true
	case c.MaxConnections > limit:
		return "max_connections", c.MaxConnections, true
	}
	return "", 0, false
}

// streams returns how many streams the process may have. The last tenth is for the newcomers of a full
// server: they get an answer (busy), and with it a sign of life, which a refused connection is not.
func (c *Config) streams(limit int) int {
	if c.MaxStreams > 0 {
		return c.MaxStreams
	}
	return min(defaultStreams, limit-limit/10)
}

// perAddress returns the limit of connections of one address with max_connections_per_address 0.
// Several users may be behind the address, and each of their streams may have its own connection. The
// limit therefore permits at least as many connections as an address without users may have streams.
func perAddress(total, streamsPerUser int) int {
	return min(total, max(1, total/addressPart, min(leastAddress, total/2), streamsPerUser))
}

// Running implements pipeline.Phased: the server listens.
func (s *server) Running() {
	if err := s.listen(); err != nil {
		s.failed <- err
	}
}

func (s *server) listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil || s.stopped {
		return nil
	}
	address := s.plugin.config.Listen
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("web: %s is in use: stop what listens there, or choose another plugins.web.listen: %w", address, err)
	case err != nil:
		return fmt.Errorf("web: listen on %s (plugins.web.listen): %w", address, err)
	}
	listener = s.connections.Listen(listener, s.limits, s.plugin.log)
	if s.http.TLSConfig == nil {
		listener = newFirstListener(listener)
	}
	s.listener = listener
	s.serving.Go(func() {
		serve := s.http.Serve
		if s.http.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
		}
		if err := serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("web: serve: %w", err)
		}
	})
	return nil
}

// Draining implements pipeline.Phased. The server serves until Drain: load balancers may not have
// read /readyz yet.
func (s *server) Draining() {}

// Drain waits for the drain delay, and refuses new requests from then on. Requests in progress end
// in Stop, and streams in the Drain of plugins/sse.
func (s *server) Drain(ctx context.Context) error {
	if s.addr() != "" && s.plugin.config.DrainDelay > 0 {
		loop.Sleep(ctx, s.plugin.config.DrainDelay)
	}
	s.draining.Store(true)
	return nil
}

// Stop ends the server. It waits for requests in progress until ctx ends, but not for clients that
// are late with their request or do not read their answer.
func (s *server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.draining.Store(true)
	err := s.loops.Stop(ctx)
	if s.http == nil {
		return err
	}
	if stop := s.requests.Stop(ctx, s.http); stop != nil {
		err = errors.Join(err, fmt.Errorf("web: stop: %w", stop))
	}
	s.serving.Wait()
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

// handle makes an error of what ServeMux panics about: a pattern that is malformed or in conflict.
func handle(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("web: http pattern %q: %v", pattern, v)
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

var (
	_ pipeline.Failer  = (*server)(nil)
	_ pipeline.Phased  = (*server)(nil)
	_ pipeline.Drainer = (*server)(nil)
)
