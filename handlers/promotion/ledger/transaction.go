package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// wrap adds the operation and the error value that callers check.
func (l *Ledger) wrap(what string, err error) error {
	switch l.store.fault(err) {
	case faultData:
		return fmt.Errorf("ledger: %s: %w: %w", what, rules.ErrInvalid, err)
	case faultServer, faultLocked:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	default:
		err = sqldb.Explain(err)
		if _, refused := sqldb.RefusalOf(err); refused {
			err = fmt.Errorf("%w: %w", ErrRefusedByDatabase, err)
		}
		return fmt.Errorf("ledger: %s: %w", what, err)
	}
}

// refusalEvery is the interval between two log lines about one reason of the database.
const refusalEvery = time.Minute

type (
	// refusalKey is what has log lines of its own.
	refusalKey struct{ what, code, constraint, table string }
	refused    struct {
		err    error
		repair string
	}
)

// noteRefusal logs the refusal that err wraps, if it does, for the calls of routes: they are repeated,
// and a repetition has no log line of its own. It is a condition until the call works again.
func (l *Ledger) noteRefusal(what string, err error) {
	l.standing.Note(what, err, errors.Is(err, ErrRefusedByDatabase))
	if why, ok := sqldb.RefusalOf(err); ok && errors.Is(err, ErrRefusedByDatabase) {
		l.refusals.Add(refusalKey{what, why.Code, why.Constraint, why.Table}, refused{err, why.Repair()})
	}
}

func logRefusals(log *slog.Logger) *logs.Sampled[refusalKey, refused] {
	return logs.NewSampled(refusalEvery, func(s logs.Sample[refusalKey, refused]) {
		log.LogAttrs(context.Background(), slog.LevelError, "the database refuses a statement of the ledger",
			slog.String(logs.Component, "ledger"), slog.String("operation", s.Key.what), slog.String("sqlstate", s.Key.code),
			slog.String("constraint", s.Key.constraint), slog.String("table", s.Key.table), slog.String("repair", s.Latest.repair),
			slog.Int("times", s.Count), logs.Err(s.Latest.err), s.Late())
	})
}

const (
	// maxTries bounds the runs of a transaction that is rolled back by a deadlock.
	maxTries = 6
	// maxLockTries bounds the runs of an operator's transaction that met a lock. With
	// pgPromotionLockTimeout it outlasts the session of a frozen process.
	maxLockTries = 10
)

// transact reads what req names, runs fn, and commits the write set of fn.
func (l *Ledger) transact(ctx context.Context, w readRequest, fn func(context.Context, transaction, *readResult, *writeSet) error) error {
	for n := 1; ; n++ {
		err := l.transactOnce(ctx, w, fn)
		f := l.faultOf(err)
		if n == maxTries || f != faultRetry && f != faultStale {
			return err
		}
		if f == faultStale {
			w.lock = true
			continue
		}
		if !loop.Sleep(ctx, time.Duration(rand.Int64N(int64(n)*int64(5*time.Millisecond)))) {
			return ctx.Err()
		}
	}
}

// transactPastLocks is transact for operators: it repeats while another transaction holds a row.
func (l *Ledger) transactPastLocks(ctx context.Context, w readRequest, fn func(context.Context, transaction, *readResult, *writeSet) error) (err error) {
	for range maxLockTries {
		if err = l.transact(ctx, w, fn); l.store.fault(err) != faultLocked || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (l *Ledger) transactOnce(ctx context.Context, w readRequest, fn func(context.Context, transaction, *readResult, *writeSet) error) error {
	tx, read, err := l.store.begin(ctx, w)
	if err != nil {
		return err
	}
	defer tx.rollback()
	if err := l.completePromotions(ctx, tx, w, read); err != nil {
		return err
	}
	var writes writeSet
	if err := fn(ctx, tx, read, &writes); err != nil {
		return err
	}
	failpoint.Hit(failpoint.InTransaction)
	return tx.commit(ctx, &writes)
}

// completePromotions inserts the missing rows of promotions.
func (l *Ledger) completePromotions(ctx context.Context, tx transaction, w readRequest, read *readResult) error {
	var missing []payouts.Promotion
	for _, p := range w.promotions {
		if _, ok := read.promotions[p]; !ok && !w.knownOnly {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := tx.addPromotions(ctx, missing, read.now); err != nil {
		return err
	}
	return tx.readMore(ctx, readRequest{promotions: missing}, read)
}

// update runs fn in a transaction. It repeats after a deadlock, or when a promotion's lock was not
// free in time. Between two tries, begins that queue behind the lock go first.
func (l *Ledger) update(ctx context.Context, what string, exclusive *payouts.Promotion, fn func(q querier, now time.Time) error) error {
	for n := 1; ; n++ {
		err := l.store.update(ctx, exclusive, fn)
		if err == nil {
			return nil
		}
		f := l.faultOf(err)
		if f != faultRetry && f != faultLocked || f == faultRetry && n >= maxTries || n >= maxLockTries || !loop.Sleep(ctx, time.Duration(rand.Int64N(int64(10*time.Millisecond)))) {
			return l.wrap(what, err)
		}
	}
}

// routine is update for what instances repeat by themselves, so that a database that refuses it is a condition.
func (l *Ledger) routine(ctx context.Context, what string, fn func(q querier, now time.Time) error) error {
	err := l.update(ctx, what, nil, fn)
	l.standing.Note(what, err, errors.Is(err, ErrRefusedByDatabase))
	return err
}

// Refused returns what the database refuses of the work that instances repeat by themselves.
func (l *Ledger) Refused(now time.Time) (c operate.Check, ok bool) { return l.standing.Check(now) }

// selectAll reads one value per row of a query.
func selectAll[T any](ctx context.Context, l *Ledger, what string, scan func(r scanner, to *T, now time.Time) error, sql string, args ...any) ([]T, error) {
	var all []T
	err := l.read(ctx, what, func(q querier, now time.Time) error {
		return q.query(ctx, func(r scanner) error {
			var value T
			err := scan(r, &value, now)
			all = append(all, value)
			return err
		}, sql, args...)
	})
	return all, err
}

func (l *Ledger) read(ctx context.Context, what string, fn func(q querier, now time.Time) error) error {
	if err := l.store.read(ctx, fn); err != nil {
		return l.wrap(what, err)
	}
	return nil
}
