package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Ledger is an open ledger. It is safe for concurrent use. Its owner closes it.
type Ledger struct {
	cfg    Config
	opts   Options
	policy policy
	log    *slog.Logger
	store  store

	accepts *coalescer[acceptReq, Accepted]
	begins  *coalescer[*Record, Begun]
	settles *coalescer[*Result, Settled]
	returns *coalescer[Key, struct{}] // NotEnqueued

	orphans sync.WaitGroup
	closed  sync.Once
}

// flushTimeout bounds one transaction of a batch, waiting for locks included.
const flushTimeout = 30 * time.Second

// Open connects to the database. It does not migrate: call Migrate, or let one instance do so. When the
// server can't be reached the error wraps ErrUnavailable and names the host. logger may be nil.
func Open(ctx context.Context, cfg Config, opts Options, logger *slog.Logger) (*Ledger, error) {
	return open(ctx, cfg, opts, logger, new(atomic.Int64))
}

// open is Open with a clock that tests can move: skew nanoseconds are added to the database's time.
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
	l := &Ledger{cfg: cfg, opts: opts, policy: cfg.policy(opts), log: logger}
	var err error
	if sqldb.DialectOf(cfg.DSN.Reveal()) == sqldb.SQLite {
		l.store, err = openSQLite(ctx, cfg, logger, skew)
	} else {
		l.store, err = openPostgres(ctx, cfg, logger, skew)
	}
	if err != nil {
		return nil, err
	}
	l.start()
	return l, nil
}

func (l *Ledger) start() {
	n := l.store.flushers()
	l.accepts = newCoalescer(n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "accept", l.acceptBatch), nil)
	l.begins = newCoalescer(n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "begin", l.beginBatch), l.orphaned)
	l.settles = newCoalescer(n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "settle", l.settleBatch), nil)
	l.returns = newCoalescer(1, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "not enqueued", l.notEnqueuedBatch), nil)
}

// Migrate brings the schema up to date. It may be called by several instances at once.
func (l *Ledger) Migrate(ctx context.Context) error {
	if err := l.store.migrate(ctx); err != nil {
		return l.wrap("migrate", err)
	}
	return nil
}

// Ping checks that the database answers.
func (l *Ledger) Ping(ctx context.Context) error {
	if err := l.store.ping(ctx); err != nil {
		return l.wrap("ping", err)
	}
	return nil
}

// Close carries out what was submitted, refuses everything after it with ErrClosed, and closes the
// connections. It is idempotent.
func (l *Ledger) Close() error {
	var err error
	l.closed.Do(func() {
		l.accepts.close()
		l.begins.close()
		l.orphans.Wait()
		l.returns.close()
		l.settles.close()
		err = l.store.close()
	})
	return err
}

// wrap adds what was being done, and the sentinel that callers branch on.
func (l *Ledger) wrap(what string, err error) error {
	switch l.store.fault(err) {
	case faultData:
		return fmt.Errorf("ledger: %s: %w: %w", what, ErrInvalid, err)
	case faultServer:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	default:
		return fmt.Errorf("ledger: %s: %w", what, err)
	}
}

// tries is how often a transaction runs that was the victim of a deadlock.
const tries = 6

// transact runs fn over the wanted rows and commits what fn leaves in changes.
func (l *Ledger) transact(ctx context.Context, w want, fn func(context.Context, unit, *snapshot, *changes) error) error {
	for n := 1; ; n++ {
		err := l.transactOnce(ctx, w, fn)
		f := l.store.fault(err)
		if n == tries || f != faultRetry && f != faultStale {
			return err
		}
		if f == faultStale {
			w.lock = true
			continue
		}
		if err := wait(ctx, time.Duration(rand.Int64N(int64(n)*int64(5*time.Millisecond)))); err != nil {
			return err
		}
	}
}

func (l *Ledger) transactOnce(ctx context.Context, w want, fn func(context.Context, unit, *snapshot, *changes) error) error {
	u, s, err := l.store.begin(ctx, w)
	if err != nil {
		return err
	}
	defer u.rollback()
	if err := l.completePromotions(ctx, u, w, s); err != nil {
		return err
	}
	var c changes
	if err := fn(ctx, u, s, &c); err != nil {
		return err
	}
	return u.commit(ctx, &c)
}

// completePromotions makes the rows of promotions seen for the first time.
func (l *Ledger) completePromotions(ctx context.Context, u unit, w want, s *snapshot) error {
	var missing []Promotion
	for _, p := range w.promotions {
		if _, ok := s.promotions[p]; !ok {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := u.addPromotions(ctx, missing, s.now); err != nil {
		return err
	}
	return u.more(ctx, want{promotions: missing}, s)
}

// batched turns a function over a batch into a flush: when the batch fails for a reason that may be one
// row's, every call is tried alone.
func batched[Q, R any](l *Ledger, what string, run func(context.Context, []*call[Q, R]) error) func(context.Context, []*call[Q, R]) {
	try := func(ctx context.Context, batch []*call[Q, R]) error {
		ctx, cancel := context.WithTimeout(ctx, flushTimeout)
		defer cancel()
		return run(ctx, batch)
	}
	return func(ctx context.Context, batch []*call[Q, R]) {
		err := try(ctx, batch)
		f := l.store.fault(err)
		alone := err != nil && len(batch) > 1 && f != faultServer && !errors.Is(err, context.DeadlineExceeded)
		failed := 0 // calls in sequence that failed alone for no reason of their own
		for _, k := range batch {
			if alone && failed < 3 {
				if err = try(ctx, []*call[Q, R]{k}); err != nil && l.store.fault(err) != faultData {
					failed++
				} else {
					failed = 0
				}
			}
			if err != nil {
				var none R
				k.finish(none, l.wrap(what, err))
			} else {
				k.finish(k.res, k.err)
			}
		}
	}
}

// wanted returns the sorted unique keys and promotions of a batch.
func wanted[Q, R any](batch []*call[Q, R], key func(Q) Key) (w want) {
	for _, k := range batch {
		w.keys = append(w.keys, key(k.req))
	}
	slices.SortFunc(w.keys, compareKeys)
	w.keys = slices.Compact(w.keys)
	for _, k := range w.keys {
		if n := len(w.promotions); n == 0 || w.promotions[n-1] != k.Of() {
			w.promotions = append(w.promotions, k.Of())
		}
	}
	return w
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
