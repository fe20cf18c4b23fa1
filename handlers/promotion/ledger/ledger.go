package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Ledger is an open ledger. It is safe for concurrent use. The caller of Open closes it.
type Ledger struct {
	cfg    Config
	opts   Options
	policy rules.Policy
	log    *slog.Logger
	store  store

	accepts     *flusher[acceptRequest, AcceptResult]
	notEnqueued *flusher[rules.Key, struct{}]
	begins      *batcher[*rules.Record, BeginResult]
	leaves      *batcher[rules.Key, struct{}] // single calls of NotEnqueued
	settles     *batcher[*rules.CallResult, SettleResult]

	streamLoss chan struct{} // capacity 1: one RecordStreamLoss at a time

	life     context.Context // of every flush; ended by a Close whose context ends
	end      context.CancelFunc
	closing  bool
	entering sync.Mutex     // guards closing
	calls    sync.WaitGroup // of Accept and NotEnqueued
	closed   sync.Once
}

// flushTimeout bounds one transaction of a batch, with its waits for locks.
const flushTimeout = 15 * time.Second

// Open connects to the database. It does not migrate: call Migrate, or let one instance do so. If
// the server is unreachable, the error wraps ErrUnavailable and names the host. logger may be nil.
func Open(ctx context.Context, cfg Config, opts Options, logger *slog.Logger) (*Ledger, error) {
	return open(ctx, cfg, opts, logger, new(atomic.Int64))
}

// open is Open with a clock for tests: skew nanoseconds are added to the database's time.
func open(ctx context.Context, cfg Config, opts Options, logger *slog.Logger, skew *atomic.Int64) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	l := &Ledger{cfg: cfg, opts: opts, policy: cfg.policy(opts), log: logger, streamLoss: make(chan struct{}, 1)}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if sqldb.DialectOf(cfg.DSN.Reveal()) == sqldb.SQLite {
		l.store, err = openSQLite(ctx, cfg, logger, skew)
	} else {
		l.store, err = openPostgres(ctx, cfg, logger, skew)
	}
	if err != nil {
		l.end()
		return nil, err
	}
	l.start()
	return l, nil
}

func (l *Ledger) start() {
	n := l.store.flushers()
	l.accepts = newFlusher(l, "accept", n, l.acceptBatch)
	l.notEnqueued = newFlusher(l, "not enqueued", 1, l.notEnqueuedBatch)
	begins := newFlusher(l, "begin", n, l.beginBatch)
	settles := newFlusher(l, "settle", n, l.settleBatch)
	if s, ok := l.store.(ordinaryStore); ok {
		begins.ordinary = func(ctx context.Context, batch []*batchItem[*rules.Record, BeginResult]) error {
			return l.beginOrdinary(ctx, s, batch)
		}
		settles.ordinary = func(ctx context.Context, batch []*batchItem[*rules.CallResult, SettleResult]) error {
			return l.settleOrdinary(ctx, s, batch)
		}
	}
	l.begins, l.leaves, l.settles = begins.collect(n), l.notEnqueued.collect(1), settles.collect(n)
	l.begins.cancels, l.leaves.cancels = true, true
}

// enter counts a call in l.calls. It returns false once the ledger is closing.
func (l *Ledger) enter() bool {
	l.entering.Lock()
	defer l.entering.Unlock()
	if l.closing {
		return false
	}
	l.calls.Add(1)
	return true
}

// Migrate updates the tables. Several instances may call it at once.
func (l *Ledger) Migrate(ctx context.Context) error {
	if err := l.store.migrate(ctx); err != nil {
		return l.wrap("migrate", err)
	}
	return nil
}

// Close is CloseContext without a time limit.
func (l *Ledger) Close() error { return l.CloseContext(context.Background()) }

// CloseContext finishes running calls, refuses later ones with ErrClosed, and closes the
// connections. When ctx ends first, running transactions are interrupted: their callers get
// ErrClosed, and the outcome is unknown. It is idempotent.
func (l *Ledger) CloseContext(ctx context.Context) error {
	var err error
	l.closed.Do(func() {
		defer l.end()
		inTime := context.AfterFunc(ctx, l.end)
		defer inTime()
		l.entering.Lock()
		l.closing = true
		l.entering.Unlock()
		l.calls.Wait()
		l.begins.close()
		l.leaves.close()
		l.settles.close()
		closed := make(chan error, 1)
		go func() { closed <- l.store.close() }() // an unresponsive server delays it by 15 s
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = fmt.Errorf("ledger: close: %w", ctx.Err())
		}
	})
	return err
}
