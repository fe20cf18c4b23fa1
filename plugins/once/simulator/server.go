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
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const syncEvery = time.Second

// Config is the settings of a Server. The zero value is a far side without faults on a free loopback
// port, with its journal in memory.
type Config struct {
	Listen      string        // address; empty: 127.0.0.1:0
	JournalPath string        // SQLite file of the journal; empty: in memory
	SyncAlways  bool          // fsync before every answer, instead of once per second
	KeyTTL      time.Duration // after this time a key is executed again; 0: never
	// KeysAgeFromFirstUse counts KeyTTL from the first request with the key, and keeps a rejection for
	// the same time. Otherwise it counts from the execution, and rejections are not kept.
	KeysAgeFromFirstUse bool
	Token               setting.Secret // required bearer token, which may rotate; empty: none
	Faults              Faults
	Logger              *slog.Logger     // nil: none
	Now                 func() time.Time // clock of the journal; nil: time.Now
}

// Server is a simulated far side, a pipeline.Service. It is safe for concurrent use. It can be
// started once.
type Server struct {
	api    API
	cfg    Config
	token  *setting.Live
	faults atomic.Pointer[Faults]
	counts [kinds]atomic.Uint64
	failed chan error
	pace   pace

	mu       sync.RWMutex // guards the fields below
	journal  *journal     // in memory before Start
	addr     string       // of the listener; kept while Down
	http     *http.Server // nil while Down
	comeUp   *time.Timer  // ends Down after DownFor
	started  bool
	stopping bool

	requests sync.WaitGroup
	loops    sync.WaitGroup
	quiet    context.Context // ends when stopping: silent requests end
	endQuiet context.CancelFunc
	kill     chan struct{} // closed when Stop's time is over: slow requests end
}

// New returns a server that is not started.
func New(api API, cfg Config) (*Server, error) {
	if err := cfg.Faults.Validate(); err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	if cfg.KeyTTL < 0 {
		return nil, fmt.Errorf("simulator: key ttl must not be negative, got %s", cfg.KeyTTL)
	}
	if cfg.KeyTTL > 0 && api.ForgetsKeys {
		return nil, errors.New("simulator: a far side that knows no keys has no key ttl")
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
		api: api.withDefaults(), cfg: cfg, token: cfg.Token.Live("token", cfg.Logger, nil),
		journal: newJournal(cfg, api.ForgetsKeys), failed: make(chan error, 1), kill: make(chan struct{}),
	}
	s.quiet, s.endQuiet = context.WithCancel(context.Background())
	s.faults.Store(&cfg.Faults)
	return s, nil
}

// Start opens the journal and listens. With Faults.Down it reserves its address, and refuses
// connections.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.stopping {
		return errors.New("simulator: it can be started only once")
	}
	j := newJournal(s.cfg, s.api.ForgetsKeys)
	if err := j.open(ctx, s.cfg.JournalPath, s.cfg.SyncAlways); err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	s.journal = j
	s.addr = s.cfg.Listen
	if err := s.listen(ctx); err != nil {
		return errors.Join(err, j.close())
	}
	s.started = true
	if j.table != nil && !s.cfg.SyncAlways {
		s.loops.Go(func() {
			loop.Every(s.quiet, syncEvery, func(context.Context) {
				if err := j.table.sync(); err != nil {
					s.fail(fmt.Errorf("simulator: %w", err))
				}
			})
		})
	}
	return s.applyDown(*s.faults.Load())
}

// listen serves on s.addr. The caller holds mu.
func (s *Server) listen(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.addr)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	s.addr = l.Addr().String()
	srv, limited := httpserver.Tool(l, s, s.cfg.Logger.With("component", "simulator"))
	s.http = srv
	s.loops.Go(func() {
		if err := srv.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("simulator: serve: %w", err))
		}
	})
	return nil
}

func (s *Server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// Failed implements pipeline.Failer: the listener failed, or the journal can't be written.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop ends silent requests, lets the others finish within ctx, and closes the journal.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	first := !s.stopping
	s.stopping = true
	j, started, disconnect := s.journal, s.started, func() error { return nil }
	if s.http != nil {
		disconnect = s.http.Close
	}
	if s.comeUp != nil {
		s.comeUp.Stop()
	}
	s.mu.Unlock()
	if !first || !started {
		return nil
	}
	s.endQuiet()
	end := context.AfterFunc(ctx, func() {
		close(s.kill)
		_ = disconnect()
	})
	s.requests.Wait() // their answers were flushed
	end()
	_ = disconnect()
	s.loops.Wait()
	if err := j.close(); err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	return nil
}

// URL returns the base URL without a trailing slash; empty before Start.
func (s *Server) URL() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.started {
		return ""
	}
	return "http://" + s.addr
}

// Faults returns the current faults.
func (s *Server) Faults() Faults { return *s.faults.Load() }

// SetFaults replaces the faults, from the next request on. Down closes the listener and cuts all
// connections. After it the API listens on the same address.
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
	return s.applyDown(f)
}

// applyDown starts or ends Down. The caller holds mu.
func (s *Server) applyDown(f Faults) error {
	if s.comeUp != nil {
		s.comeUp.Stop()
		s.comeUp = nil
	}
	switch {
	case !f.Down && s.http == nil:
		return s.listen(context.Background())
	case f.Down && s.http != nil:
		s.http.Close()
		s.http = nil
	}
	if f.Down && f.DownFor > 0 {
		s.comeUp = time.AfterFunc(f.DownFor, s.endDown)
	}
	return nil
}

func (s *Server) endDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping || s.http != nil {
		return
	}
	f := *s.faults.Load()
	f.Down, f.DownFor = false, 0
	s.faults.Store(&f)
	if err := s.applyDown(f); err != nil {
		s.fail(err)
	}
}

// Page returns a part of the journal; empty before Start. The error is that of API.Filter.
func (s *Server) Page(q Query) (Page, error) {
	match, err := s.api.Filter(q.Filter)
	if err != nil {
		return Page{}, err
	}
	return s.opened().page(q, match), nil
}

// Summary returns the totals of the journal, and the requests by kind.
func (s *Server) Summary() Summary {
	sum := s.opened().summary()
	sum.Requests = make(map[string]uint64, kinds)
	for k := range kinds {
		sum.Requests[k.String()] = s.counts[k].Load()
	}
	return sum
}

func (s *Server) opened() *journal {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.journal
}

// Poisons reports whether every attempt with the key fails (Faults.PoisonRate).
func (s *Server) Poisons(key string) bool { return s.faults.Load().poison(key) != wholesome }

var (
	_ pipeline.Service = (*Server)(nil)
	_ pipeline.Failer  = (*Server)(nil)
)
