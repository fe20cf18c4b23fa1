package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// wrap adds the operation and the error value that callers check.
func (l *Ledger) wrap(what string, err error) error {
	if err == nil || ours(err) {
		return err
	}
	switch l.store.fault(err) {
	case faultData:
		return fmt.Errorf("once: ledger: %s: %w: %w", what, ErrInvalid, err)
	case faultServer, faultLocked:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
	default:
		if why, refused := sqldb.RefusalOf(err); refused { // its repair is what Explain says of a start
			return fmt.Errorf("once: ledger: %s: %w: %w; %s", what, ErrRefusedByDatabase, err, why.Repair())
		}
		return fmt.Errorf("once: ledger: %s: %w", what, err)
	}
}

const (
	// maxTries bounds the runs of a transaction that is rolled back by a deadlock.
	maxTries = 6
	// maxLockTries bounds the runs of an operator's transaction that met a lock. With
	// pgGroupLockTimeout it outlasts the session of a frozen process.
	maxLockTries = 10
)

type body func(context.Context, transaction, *readResult, *writeSet) error

// transact reads what w names, runs fn, and commits the write set of fn. It repeats after a deadlock.
func (l *Ledger) transact(ctx context.Context, w readRequest, fn body) error {
	return l.repeat(ctx, func() error { return l.transactOnce(ctx, w, fn) })
}

// repeat runs try, which is a transaction, again after a deadlock.
func (l *Ledger) repeat(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if f := l.faultOf(err); n == maxTries || f != faultRetry {
			return err
		}
		if !loop.Sleep(ctx, time.Duration(rand.Int64N(int64(n)*int64(5*time.Millisecond)))) {
			return ctx.Err()
		}
	}
}

// transactPastLocks is transact for operators: it repeats while another transaction holds a row.
func (l *Ledger) transactPastLocks(ctx context.Context, w readRequest, fn body) (err error) {
	for range maxLockTries {
		if err = l.transact(ctx, w, fn); l.store.fault(err) != faultLocked || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (l *Ledger) transactOnce(ctx context.Context, w readRequest, fn body) error {
	tx, read, err := l.store.begin(ctx, w)
	if err != nil {
		return err
	}
	defer tx.rollback()
	var writes writeSet
	if err := fn(ctx, tx, read, &writes); err != nil {
		tx.rollback()
		return l.refuse(ctx, err)
	}
	failpoint.Hit(failpoint.InTransaction)
	return tx.commit(ctx, &writes)
}

// refuse returns err, by which a transaction was not made. What it says rests on rows that were only read, and a
// failover may lose these: so it is told once the synchronous standby has them.
func (l *Ledger) refuse(ctx context.Context, err error) error {
	if !ours(err) {
		return err
	}
	if lost := l.store.confirm(ctx); lost != nil {
		return lost
	}
	return err
}

// leastWait is the shortest wait for a lock of split.
const leastWait = 5 * time.Millisecond

// split runs try for all items in one transaction. If that fails because of some of them, since
// another transaction holds a key or the database can't store a value, it divides them until failed
// is called for each of those alone. Other errors are returned. A part waits for a lock a quarter of the time of the whole,
// because the whole has waited already, and because many keys may be held.
func split[T any](ctx context.Context, l *Ledger, items []T, wait time.Duration, try func(ctx context.Context, items []T, wait time.Duration) error, failed func(item T, err error)) error {
	err := try(ctx, items, wait)
	switch l.store.fault(err) {
	case faultRetry, faultLocked, faultData:
	default:
		return err
	}
	if ctx.Err() != nil {
		return err
	}
	if len(items) == 1 {
		failed(items[0], err)
		return nil
	}
	half := len(items) / 2
	wait = max(wait/4, leastWait)
	if err := split(ctx, l, items[:half], wait, try, failed); err != nil {
		return err
	}
	return split(ctx, l, items[half:], wait, try, failed)
}

// update runs fn in a transaction. It repeats after a deadlock, or when a lock was not free in time.
// While it waits for the lock of a group, no claim takes that.
func (l *Ledger) update(ctx context.Context, lock groupLock, fn func(q querier, now time.Time) error) error {
	for n := 1; ; n++ {
		refused := false
		err := l.store.update(ctx, lock, func(q querier, now time.Time) error {
			err := fn(q, now)
			refused = err != nil
			return err
		})
		if refused {
			err = l.refuse(ctx, err)
		}
		f := l.faultOf(err)
		if f != faultRetry && f != faultLocked || f == faultRetry && n >= maxTries || n >= maxLockTries || !loop.Sleep(ctx, time.Duration(rand.Int64N(int64(10*time.Millisecond)))) {
			return err
		}
	}
}

// atNow is, as the last argument of a query, the time at which it reads.
type atNow struct{}

// selectAll reads one value per row of a query.
func selectAll[T any](ctx context.Context, l *Ledger, scan func(r scanner, to *T, now time.Time) error, sql string, args ...any) (all []T, err error) {
	err = l.store.read(ctx, func(q querier, now time.Time) error {
		all = nil
		if n := len(args) - 1; n >= 0 && args[n] == any(atNow{}) {
			args = append(args[:n:n], now)
		}
		return q.query(ctx, func(r scanner) error {
			var value T
			err := scan(r, &value, now)
			all = append(all, value)
			return err
		}, sql, args...)
	})
	return all, err
}
