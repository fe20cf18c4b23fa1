package letters

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// By is who does something to letters, and why. Both are recorded.
type By struct{ Who, Why string }

// StateError says that a letter is in a state in which it isn't replayed or discarded.
type StateError struct {
	ID         string
	State      State
	Generation int
}

// Error names the letter and its state.
func (e *StateError) Error() string { return fmt.Sprintf("dead letter %s is %s", e.ID, e.State) }

// Begun is a replay that has begun: of this letter, in this generation.
type Begun struct {
	Letter
	action int64
	// Resumed: an earlier replay of the same generation began and did not end. What it did may be done.
	Resumed bool
}

// Begin makes a letter replaying, and records who began it and why. parked: one that came back may be
// replayed again. The error is a *StateError when the letter is not to be replayed, and wraps ErrNotFound when there
// is none, ErrTurnLost when the turn has ended.
func (t *Turn) Begin(ctx context.Context, id string, by By, parked bool) (Begun, error) {
	s := t.store
	var b Begun
	err := t.update(ctx, "begin a replay", func(q querier, now time.Time) error {
		l, err := s.lock(ctx, q, "id", id)
		if err != nil {
			return err
		}
		if l == nil {
			return fmt.Errorf("%w: %s", ErrNotFound, id)
		}
		if l.State != Open && l.State != Replaying && (l.State != Parked || !parked) {
			return &StateError{l.ID, l.State, l.Generation}
		}
		b = Begun{Letter: *l, Resumed: l.State == Replaying}
		if _, err := s.exec(ctx, q, `UPDATE dead_letters SET state = 'replaying', changed_at = $2 WHERE id = $1`, id, now); err != nil {
			return err
		}
		b.action, err = s.record(ctx, q, ActionReplay, l, by, now, OutcomeBegun)
		return err
	})
	return b, err
}

// The outcomes of a replay.
const (
	OutcomeBegun    = "begun"    // it has not ended
	OutcomeReplayed = "replayed" // the letter is on its way again
	OutcomeAlready  = "already"  // an earlier replay of the same generation had done it
	OutcomeRefused  = "refused"  // the letter must not be replayed; it waits as before
	OutcomeFailed   = "failed"   // it is not known whether it was done; the next replay finishes it
)

// Finish ends a replay. detail is the reason of OutcomeRefused and OutcomeFailed.
func (s *Store) Finish(ctx context.Context, b Begun, outcome, detail string) error {
	state := Replayed
	switch {
	case outcome == OutcomeFailed:
		state = Replaying
	case outcome == OutcomeRefused && b.Generation > 1:
		state = Parked
	case outcome == OutcomeRefused:
		state = Open
	}
	return s.update(ctx, "finish a replay", func(q querier, now time.Time) error {
		// One that has come back meanwhile is parked already, in another generation.
		if _, err := s.exec(ctx, q, `UPDATE dead_letters SET state = $3, changed_at = $4 WHERE id = $1 AND generation = $2 AND state = 'replaying'`,
			b.ID, b.Generation, string(state), now); err != nil {
			return err
		}
		_, err := s.exec(ctx, q, `UPDATE dead_letter_actions SET outcome = $2, detail = $3 WHERE id = $1`, b.action, outcome, clean(detail))
		return err
	})
}

// Discard gives a waiting letter up, and records who did it and why. Its errors are those of Begin.
func (t *Turn) Discard(ctx context.Context, id string, by By) error {
	s := t.store
	return t.update(ctx, "discard", func(q querier, now time.Time) error {
		l, err := s.lock(ctx, q, "id", id)
		if err != nil {
			return err
		}
		if l == nil {
			return fmt.Errorf("%w: %s", ErrNotFound, id)
		}
		if l.State != Open && l.State != Replaying && l.State != Parked {
			return &StateError{l.ID, l.State, l.Generation}
		}
		if _, err := s.exec(ctx, q, `UPDATE dead_letters SET state = 'discarded', changed_at = $2 WHERE id = $1`, id, now); err != nil {
			return err
		}
		_, err = s.record(ctx, q, ActionDiscard, l, by, now, string(Discarded))
		return err
	})
}

func (s *Store) record(ctx context.Context, q querier, action string, l *Letter, by By, now time.Time, outcome string) (id int64, err error) {
	err = s.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&id) },
		`INSERT INTO dead_letter_actions (letter, generation, action, who, why, at, outcome, detail) VALUES ($1, $2, $3, $4, $5, $6, $7, '') RETURNING id`,
		l.ID, l.Generation, action, clean(by.Who), clean(by.Why), now, outcome)
	return id, err
}

// Cursor walks over letters, oldest first, and no further than those that were there when it was made.
type Cursor struct {
	filter Filter
	after  int64
	last   int64
}

// Walk returns a cursor over the letters that f means.
func (s *Store) Walk(ctx context.Context, f Filter) (*Cursor, error) {
	c := &Cursor{filter: f}
	err := s.query(ctx, s.db, func(rows *sql.Rows) error { return rows.Scan(&c.last) }, `SELECT coalesce(max(seq), 0) FROM dead_letters`)
	if err != nil {
		return nil, s.wrap("walk", err)
	}
	return c, nil
}

// Next returns up to limit letters, without payloads; none when the walk is over.
func (s *Store) Next(ctx context.Context, c *Cursor, limit int) ([]Letter, error) {
	condition, args := c.filter.where([]any{c.after, c.last})
	var list []Letter
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		l, err := scan(rows)
		list = append(list, l)
		return err
	}, `SELECT `+columns+`, NULL FROM dead_letters WHERE seq > $1 AND seq <= $2 AND `+condition+fmt.Sprintf(` ORDER BY seq LIMIT %d`, limit), args...)
	if err != nil {
		return nil, s.wrap("walk", err)
	}
	if len(list) > 0 {
		c.after = list[len(list)-1].seq
	}
	return list, nil
}

// Kind is a kind of letters that are replayed alike.
type Kind struct {
	Plugin string
	Source string // KindKafka, KindStream or empty
	Ledger bool   // a ledger has them: they have a subject
}

// Kind returns the kind of a letter.
func (l Letter) Kind() Kind {
	return Kind{Plugin: l.Plugin, Source: l.Source.Kind, Ledger: l.Subject != ""}
}

// Kinds returns the kinds of the letters that f means.
func (s *Store) Kinds(ctx context.Context, f Filter) ([]Kind, error) {
	condition, args := f.where(nil)
	var all []Kind
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		var k Kind
		err := rows.Scan(&k.Plugin, &k.Source, &k.Ledger)
		all = append(all, k)
		return err
	}, `SELECT DISTINCT plugin, kind, subject <> '' FROM dead_letters WHERE `+condition, args...)
	if err != nil {
		return nil, s.wrap("look at the kinds", err)
	}
	return all, nil
}
