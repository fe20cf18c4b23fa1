package letters

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// ErrTurnLost says that the turn was held too long without renewing it, and nothing was done: stop, somebody else may
// have it.
var ErrTurnLost = errors.New("the turn to work on dead letters was lost")

const (
	turnLease = 15 * time.Second
	// turnRenew is how old a turn gets before it is renewed.
	turnRenew = 3 * time.Second
	// turnMargin is the end of a turn in which nothing is begun.
	turnMargin = 2 * time.Second
)

// Turn is the right to replay and discard, which one process has at a time. Its holder loses it by dying, after
// turnLease, so that a letter found replaying by the next holder is in nobody's hand. It is not safe for
// concurrent use.
type Turn struct {
	store   *Store
	holder  string
	renewed time.Time // by the local monotonic clock, read before the database was asked
}

// Take takes the turn, or answers who has it. holder must be unique.
func (s *Store) Take(ctx context.Context, holder string) (turn *Turn, other string, err error) {
	t := &Turn{store: s, holder: holder}
	ok, other, err := t.renew(ctx)
	if err != nil || !ok {
		return nil, other, err
	}
	return t, "", nil
}

func (t *Turn) renew(ctx context.Context) (ok bool, other string, err error) {
	before := time.Now()
	err = t.store.update(ctx, "take the turn", func(q querier, now time.Time) error {
		n, err := t.store.exec(ctx, q, `UPDATE dead_letter_lock SET holder = $1, held_until = $2
			WHERE name = 'work' AND (holder = $1 OR held_until IS NULL OR held_until <= $3)`, t.holder, now.Add(turnLease), now)
		ok = n == 1
		if err != nil || ok {
			return err
		}
		return t.store.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&other) }, `SELECT holder FROM dead_letter_lock WHERE name = 'work'`)
	})
	if ok && err == nil {
		t.renewed = before
	}
	return ok, other, err
}

// Keep renews the turn when it is time. The error is ErrTurnLost when somebody else has it.
func (t *Turn) Keep(ctx context.Context) error {
	if time.Since(t.renewed) <= turnRenew {
		return nil
	}
	ok, _, err := t.renew(ctx)
	if err == nil && !ok {
		err = ErrTurnLost
	}
	return err
}

// Until is when what was begun in the turn must have ended, unless it is kept before.
func (t *Turn) Until() time.Time { return t.renewed.Add(turnLease - turnMargin) }

// update runs fn in a transaction during which nobody else can take the turn. The error wraps ErrTurnLost when it has ended.
func (t *Turn) update(ctx context.Context, what string, fn func(q querier, now time.Time) error) error {
	return t.store.update(ctx, what, func(q querier, now time.Time) error {
		held := false
		err := t.store.query(ctx, q, func(*sql.Rows) error { held = true; return nil },
			`SELECT name FROM dead_letter_lock WHERE name = 'work' AND holder = $1 AND held_until > $2`+t.store.locking("SHARE"), t.holder, now)
		if err == nil && !held {
			err = ErrTurnLost
		}
		if err != nil {
			return err
		}
		return fn(q, now)
	})
}

// Release gives the turn to whoever comes next.
func (t *Turn) Release(ctx context.Context) error {
	return t.store.update(ctx, "release the turn", func(q querier, _ time.Time) error {
		_, err := t.store.exec(ctx, q, `UPDATE dead_letter_lock SET held_until = NULL WHERE name = 'work' AND holder = $1`, t.holder)
		return err
	})
}
