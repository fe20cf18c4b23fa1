package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline/killpoint"
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

	losses chan struct{} // capacity 1: held by the Lost under way

	life    context.Context // of every flush; ended by a Close that has no more time
	end     context.CancelFunc
	orphans sync.WaitGroup
	closed  sync.Once
}

// flushTimeout bounds one transaction of a batch, waiting for locks included.
const flushTimeout = 15 * time.Second

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
	l := &Ledger{cfg: cfg, opts: opts, policy: cfg.policy(opts), log: logger, losses: make(chan struct{}, 1)}
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
	l.accepts = newCoalescer(l.life, n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "accept", l.acceptBatch), nil)
	l.begins = newCoalescer(l.life, n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "begin", l.beginBatch), l.orphaned)
	l.settles = newCoalescer(l.life, n, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "settle", l.settleBatch), nil)
	l.returns = newCoalescer(l.life, 1, l.cfg.MaxBatch, l.cfg.Linger, batched(l, "not enqueued", l.notEnqueuedBatch), nil)
}

// Migrate brings the schema up to date. It may be called by several instances at once.
func (l *Ledger) Migrate(ctx context.Context) error {
	if err := l.store.migrate(ctx); err != nil {
		return l.wrap("migrate", err)
	}
	return nil
}

// Close is CloseContext without a bound.
func (l *Ledger) Close() error { return l.CloseContext(context.Background()) }

// CloseContext carries out what was submitted, refuses everything after it with ErrClosed, and closes the connections.
// When ctx ends first, transactions under way are cut off: their callers get ErrClosed, and the outcome is unknown. It is
// idempotent.
func (l *Ledger) CloseContext(ctx context.Context) error {
	var err error
	l.closed.Do(func() {
		defer l.end()
		inTime := context.AfterFunc(ctx, l.end)
		defer inTime()
		l.accepts.close()
		l.begins.close()
		l.orphans.Wait()
		l.returns.close()
		l.settles.close()
		closed := make(chan error, 1)
		go func() { closed <- l.store.close() }() // a server that is silent keeps it for 15 s
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = fmt.Errorf("ledger: close: %w", ctx.Err())
		}
	})
	return err
}

// wrap adds what was being done, and the sentinel that callers branch on.
func (l *Ledger) wrap(what string, err error) error {
	switch l.store.fault(err) {
	case faultData:
		return fmt.Errorf("ledger: %s: %w: %w", what, ErrInvalid, err)
	case faultServer, faultLocked:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	default:
		return fmt.Errorf("ledger: %s: %w", what, sqldb.Explain(err))
	}
}

const (
	// tries is how often a transaction runs that was the victim of a deadlock.
	tries = 6
	// lockTries is how often a statement of a person runs that met a lock. With pgGateTimeout that is longer than a
	// frozen session lives.
	lockTries = 10
)

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

// patiently is transact for a person's command: it goes on while another transaction holds a row.
func (l *Ledger) patiently(ctx context.Context, w want, fn func(context.Context, unit, *snapshot, *changes) error) (err error) {
	for range lockTries {
		if err = l.transact(ctx, w, fn); l.store.fault(err) != faultLocked || ctx.Err() != nil {
			break
		}
	}
	return err
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
	killpoint.Reach(killpoint.InTransaction)
	return u.commit(ctx, &c)
}

// completePromotions makes the rows of promotions seen for the first time.
func (l *Ledger) completePromotions(ctx context.Context, u unit, w want, s *snapshot) error {
	var missing []Promotion
	for _, p := range w.promotions {
		if _, ok := s.promotions[p]; !ok && !w.knownOnly {
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
