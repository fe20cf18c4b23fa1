package simulator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// syncEvery is how often the book is fsynced, without Config.SyncAlways.
const syncEvery = time.Second

// flushWithin is how long Stop waits for answers to leave once their requests are done.
const flushWithin = 100 * time.Millisecond

// Config is how a Server is made. The zero value is a faultless API on a free loopback port with
// its book in memory.
type Config struct {
	Listen      string        // address; empty: 127.0.0.1:0
	JournalPath string        // file of the book; empty: in memory
	SyncAlways  bool          // fsync before every answer, instead of once a second
	KeyTTL      time.Duration // after so long a key is forgotten and charged again; 0: never
	// KeysAgeFromFirstUse counts KeyTTL from the first request for a charge with the key, and remembers a rejection for as
	// long. Otherwise it counts from the charge, and rejections are not remembered.
	KeysAgeFromFirstUse bool
	Token               pipeline.Secret // bearer token to insist on; empty: none
	Faults              Faults
	Logger              *slog.Logger     // nil: none
	Now                 func() time.Time // clock of the book; nil: time.Now
}

// Server is a simulated Money API, a pipeline.Service. It is safe for concurrent use and can be
// started once.
type Server struct {
	cfg    Config
	log    *slog.Logger
	faults atomic.Pointer[Faults]
	counts counters
	failed chan error

	mu       sync.RWMutex // guards what follows
	book     *book        // nil before Start
	addr     string       // of the listener; kept while Down
	http     *http.Server // nil while Down
	comeUp   *time.Timer  // ends Down after DownFor
	started  bool
	stopping bool

	active sync.WaitGroup // handlers, and the goroutines below
	quiet  chan struct{}  // closed when stopping: silent requests end
	kill   chan struct{}  // closed when Stop's time is over: so do the slow ones
	jsonCT []string
}

// New returns a server that is not started yet. The error names wrong faults.
func New(cfg Config) (*Server, error) {
	if err := cfg.Faults.Validate(); err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	if cfg.KeyTTL < 0 {
		return nil, fmt.Errorf("simulator: key ttl must not be negative, got %s", cfg.KeyTTL)
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger.With("component", "simulator"),
		failed: make(chan error, 1), quiet: make(chan struct{}), kill: make(chan struct{}),
		jsonCT: []string{"application/json"},
	}
	s.faults.Store(&cfg.Faults)
	return s, nil
}

// Start opens the book and listens. When Faults.Down is set it finds its address, and refuses
// connections. Errors: the book is damaged or in use (ErrJournalInUse), the address can't be had.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopping {
		return errors.New("simulator: it can be started only once")
	}
	book, err := openBook(s.cfg.JournalPath, s.cfg.SyncAlways, s.cfg.KeyTTL)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	book.fromFirstUse = s.cfg.KeysAgeFromFirstUse
	s.book = book
	s.addr = s.cfg.Listen
	if err := s.listen(ctx); err != nil {
		return errors.Join(err, book.close())
	}
	s.started = true
	if book.journal != nil && !s.cfg.SyncAlways {
		s.active.Go(s.keepSynced)
	}
	s.applyDown(*s.faults.Load())
	return nil
}

// listen begins to serve on s.addr. The caller holds mu.
func (s *Server) listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	s.addr = l.Addr().String()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.http = srv
	s.active.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("simulator: serve: %w", err))
		}
	})
	return nil
}

// keepSynced bounds what a power cut can lose.
func (s *Server) keepSynced() {
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.book.journal.sync(); err != nil {
				s.fail(fmt.Errorf("simulator: %w", err))
				return
			}
		case <-s.quiet:
			return
		}
	}
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Failed implements pipeline.Failer: the listener broke, or the book can't be written.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop ends silent requests, lets the others finish within ctx, and closes the book.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	srv, book, started := s.http, s.book, s.started
	if s.comeUp != nil {
		s.comeUp.Stop()
	}
	s.mu.Unlock()
	if !first || !started {
		return nil
	}
	close(s.quiet)
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		if srv != nil && srv.Shutdown(ctx) != nil {
			srv.Close() // what takes longer than ctx is cut off
		}
	}()
	done := make(chan struct{})
	go func() { s.active.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		close(s.kill)
		<-done // nothing waits any more
	}
	// Shutdown gives connections that never carried a request five seconds. All requests are done,
	// so only their last bytes are worth waiting for.
	select {
	case <-shut:
	case <-time.After(flushWithin):
		if srv != nil {
			srv.Close()
		}
		<-shut
	}
	if err := book.close(); err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	return nil
}

// URL returns where the API is, without a trailing slash; empty before Start.
func (s *Server) URL() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.started {
		return ""
	}
	return "http://" + s.addr
}

// Faults returns the present faults.
func (s *Server) Faults() Faults { return *s.faults.Load() }

// SetFaults changes how the API misbehaves, from the next request on. Down closes the listener and
// cuts all connections; coming up again listens on the same address.
func (s *Server) SetFaults(f Faults) error {
	if err := f.Validate(); err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults.Store(&f)
	if !s.started || s.stopping {
		return nil
	}
	if s.http == nil && !f.Down {
		return s.up()
	}
	s.applyDown(f)
	return nil
}

// applyDown goes down if f says so. The caller holds mu.
func (s *Server) applyDown(f Faults) {
	if !f.Down {
		return
	}
	if s.http != nil {
		s.http.Close()
		s.http = nil
	}
	if s.comeUp != nil {
		s.comeUp.Stop()
		s.comeUp = nil
	}
	if f.DownFor > 0 {
		s.comeUp = time.AfterFunc(f.DownFor, s.downIsOver)
	}
}

// up ends Down. The caller holds mu.
func (s *Server) up() error {
	if s.comeUp != nil {
		s.comeUp.Stop()
		s.comeUp = nil
	}
	return s.listen(context.Background())
}

// downIsOver is called when DownFor has passed.
func (s *Server) downIsOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.http != nil {
		return
	}
	f := *s.faults.Load()
	f.Down, f.DownFor = false, 0
	s.faults.Store(&f)
	if err := s.up(); err != nil {
		s.fail(err)
	}
}

// Page returns a part of the book; empty before Start.
func (s *Server) Page(q Query) Page {
	if b := s.opened(); b != nil {
		return b.page(q)
	}
	return Page{}
}

// Summary returns the book in numbers, and the requests by kind.
func (s *Server) Summary() Summary {
	var sum Summary
	if b := s.opened(); b != nil {
		sum = b.summary()
	}
	sum.Requests = s.counts.snapshot()
	return sum
}

func (s *Server) opened() *book {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.book
}

var (
	_ pipeline.Service = (*Server)(nil)
	_ pipeline.Failer  = (*Server)(nil)
)

// Poisons reports whether the key is one that is always answered badly (Faults.PoisonRate).
func (s *Server) Poisons(key string) bool { return s.faults.Load().poison(key) != wholesome }
