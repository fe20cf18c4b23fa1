package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Ledger is an open ledger. It is safe for concurrent use. The caller of Open closes it.
type Ledger struct {
	opts Options
	// holder names this instance in once_slots and once_instances. An instance that starts again has another one, so the calls
	// of a killed one count although the name is the same.
	holder string
	log    *slog.Logger
	store  store

	mu      sync.RWMutex
	kinds   map[string]*kind // the registered ones, and those that were found in the table
	numbers map[int64]*kind
	home    home      // since Register
	began   time.Time // of the first Register, by the clock of the database

	refusals sqldb.Refusals

	hide    func() // the pools from Options.Metrics; nil without them
	closing sync.RWMutex
	closed  bool
	running sync.WaitGroup
	life    context.Context // of every call; ended by a CloseContext whose context ends
	end     context.CancelFunc
	once    sync.Once
}

// Open connects to the database. It does not migrate: call Migrate, or let one instance do so. If
// the server is unreachable, the error wraps ErrUnavailable and names the host.
func Open(ctx context.Context, cfg Config, opts Options) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("once: ledger: %w", err)
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	l := &Ledger{opts: opts, holder: opts.Instance + "/" + rand.Text(), log: opts.Log, kinds: map[string]*kind{}, numbers: map[int64]*kind{}}
	var err error
	if portable.DialectOf(cfg.DSN.Reveal()) == portable.SQLite {
		l.store, err = openSQLite(ctx, cfg, opts)
	} else {
		l.store, err = openPostgres(ctx, cfg, opts)
	}
	if err != nil {
		return nil, err
	}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	if opts.Metrics != nil {
		l.hide = opts.Metrics.database.Show(l.store.pools)
	}
	return l, nil
}

// Migrate creates or updates the tables. Several instances may call it at once.
func (l *Ledger) Migrate(ctx context.Context) error {
	return l.call(ctx, "migrate", l.store.migrate)
}

// CloseContext finishes running calls, refuses later ones with ErrClosed, and closes the connections.
// When ctx ends first, running transactions are interrupted: their callers get ErrClosed, and the
// outcome is unknown. It is idempotent.
func (l *Ledger) CloseContext(ctx context.Context) error {
	var err error
	l.once.Do(func() {
		defer l.end()
		if l.hide != nil {
			l.hide()
		}
		l.closing.Lock()
		l.closed = true
		l.closing.Unlock()
		interrupt := context.AfterFunc(ctx, l.end)
		defer interrupt()
		l.running.Wait()
		closed := make(chan error, 1)
		go func() { closed <- l.store.close() }() // an unresponsive server delays it by 15 s
		select {
		case err = <-closed:
		case <-ctx.Done():
			err = fmt.Errorf("once: ledger: close: %w", ctx.Err())
		}
	})
	return err
}

// call runs fn, which ends with the ledger, and explains its error.
func (l *Ledger) call(ctx context.Context, what string, fn func(context.Context) error) error {
	l.closing.RLock()
	if l.closed {
		l.closing.RUnlock()
		return ErrClosed
	}
	l.running.Add(1)
	l.closing.RUnlock()
	defer l.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(l.life, cancel)
	defer stop()
	err := fn(ctx)
	if err != nil && l.life.Err() != nil {
		return ErrClosed
	}
	return l.wrap(what, err)
}

// routine is call for what instances repeat by themselves, so that a database that refuses it is a condition.
func (l *Ledger) routine(ctx context.Context, what string, fn func(context.Context) error) error {
	err := l.call(ctx, what, fn)
	l.refusals.Note(what, err, errors.Is(err, ErrRefusedByDatabase))
	return err
}

// Refused returns what the database refuses of the work that instances repeat by themselves.
func (l *Ledger) Refused(now time.Time) (c operate.Check, ok bool) { return l.refusals.Check(now) }

// briefly is routine with the time limit of one transaction that accepts, claims or settles.
func (l *Ledger) briefly(ctx context.Context, what string, fn func(context.Context) error) error {
	return l.routine(ctx, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, l.opts.timeout)
		defer cancel()
		return fn(ctx)
	})
}

// ours reports whether an error is complete: it says what a caller needs, and is not the database's.
func ours(err error) bool {
	var refused *RefusedError
	for _, known := range []error{ErrNotFound, ErrNotSelected, ErrCancelled, ErrFinished, ErrInvalid, ErrOtherLedger, ErrConflict, ErrClosed, ErrUnavailable, ErrRefusedByDatabase} {
		if errors.Is(err, known) {
			return true
		}
	}
	return errors.As(err, &refused)
}
