package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Ledger is an open ledger. It is safe for concurrent use. The caller of Open closes it.
type Ledger struct {
	cfg    Config
	opts   Options
	policy rules.Policy
	log    *slog.Logger
	store  store

	accepts     *batcher[acceptRequest, AcceptResult]
	notEnqueued *batcher[payouts.Key, struct{}]
	begins      *batcher[*payouts.Record, BeginResult]
	settles     *batcher[*payouts.CallResult, SettleResult]

	refusals *logs.Sampled[refusalKey, refused]
	standing sqldb.Refusals

	streamLoss chan struct{} // capacity 1: one RecordStreamLoss at a time
	feedNext   sync.Map      // payouts.Promotion -> feedPosition; see FeedOverdue

	hide   func()          // the pools from Options.Metrics; nil without them
	life   context.Context // of every flush; ended by a Close whose context ends
	end    context.CancelFunc
	closed sync.Once
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
	opts.flushTimeout = cmp.Or(opts.flushTimeout, flushTimeout)
	l := &Ledger{cfg: cfg, opts: opts, policy: cfg.policy(opts), log: logger, refusals: logRefusals(logger), streamLoss: make(chan struct{}, 1)}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	if portable.DialectOf(cfg.DSN.Reveal()) == portable.SQLite {
		l.store, err = openSQLite(ctx, cfg, logger, skew)
	} else {
		l.store, err = openPostgres(ctx, cfg, logger, skew)
	}
	if err != nil {
		l.end()
		return nil, err
	}
	l.start()
	if opts.Metrics != nil {
		l.hide = opts.Metrics.database.Show(l.store.pools)
	}
	return l, nil
}

func (l *Ledger) start() {
	begins, settles := newFlusher(l, opBegin, l.beginBatch), newFlusher(l, opSettle, l.settleBatch)
	if s, ok := l.store.(ordinaryStore); ok {
		begins.ordinary = func(ctx context.Context, batch []*batchItem[*payouts.Record, BeginResult]) error {
			return l.beginOrdinary(ctx, s, batch)
		}
		settles.ordinary = func(ctx context.Context, batch []*batchItem[*payouts.CallResult, SettleResult]) error {
			return l.settleOrdinary(ctx, s, batch)
		}
	}
	n := l.store.flushers()
	l.accepts = newFlusher(l, opAccept, l.acceptBatch).collect(n, 0)
	l.notEnqueued = newFlusher(l, opNotEnqueued, l.notEnqueuedBatch).collect(1, 0)
	l.begins, l.settles = begins.collect(n, l.cfg.Linger), settles.collect(n, l.cfg.Linger)
	l.settles.keeps = true
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
		if l.hide != nil {
			l.hide()
		}
		inTime := context.AfterFunc(ctx, l.end)
		defer inTime()
		l.accepts.close()
		l.notEnqueued.close()
		l.begins.close()
		l.settles.close()
		closed := make(chan error, 1)
		go func() { closed <- l.store.close() }() // an unresponsive server delays it by 15 s
		select {
		case err = <-closed:
		case <-ctx.Done():
		}
		_ = l.refusals.Stop(ctx) // writes the rest, and can't fail: it was not started
		if ctx.Err() != nil {
			err = errors.Join(fmt.Errorf("ledger: close: %w", ctx.Err()), err)
		}
	})
	return err
}
