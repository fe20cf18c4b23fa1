package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	// leaseDuration is how long a replay may hold a dead letter.
	leaseDuration = 15 * time.Second
	// leaseMargin is the end of a lease in which the replay must be over.
	leaseMargin = 2 * time.Second
	// releaseWait bounds AwaitRelease: longer than a lease, as that of a crashed replay has to end.
	// releasePoll is the time between two checks.
	releaseWait = 25 * time.Second
	releasePoll = 500 * time.Millisecond
)

// Lease is the right of one replay to work on one dead letter, until its deadline.
type Lease struct {
	DeadLetter
	// Resumed says that an earlier replay of the same generation began and did not finish. Its
	// effect may be done.
	Resumed bool
	// Deadline is when the replay must be over, by the clock of this process. It is before the end
	// of the lease.
	Deadline time.Time

	action int64 // the replay's row of dead_letter_actions, which is also the holder of the lease
}

// By is the person who acts on dead letters, and the reason. Both are recorded.
type By struct {
	Who, Why string
	// Use is the id of one use of an action, such as a click. A use changes a dead letter once, also
	// when the click arrives twice and the dead letter has failed again in between. Empty: each call
	// is a use of its own.
	Use string
}

// StateError says that the state of a dead letter allows neither replay nor discard.
type StateError struct {
	ID         string
	State      State
	Generation int
	Used       bool // the same use of an action has changed it before
}

// Error names the dead letter and its state.
func (e *StateError) Error() string {
	if e.Used {
		return fmt.Sprintf("dead letter %s was changed by this action before", e.ID)
	}
	return fmt.Sprintf("dead letter %s is %s", e.ID, e.State)
}

// HeldError says that another replay holds the dead letter: try again after Until.
type HeldError struct {
	ID    string
	Who   string    // empty: not known
	Until time.Time // by the clock of the database
}

// Error names the dead letter, the person who replays it, and the end of the lease.
func (e *HeldError) Error() string {
	by := ""
	if e.Who != "" {
		by = " by " + e.Who
	}
	return fmt.Sprintf("dead letter %s is being replayed%s, at the latest until %s", e.ID, by, e.Until.Format(time.RFC3339))
}

// Begin leases a dead letter for a replay, makes it replaying, and records by. parked allows a
// replay of one that failed again after a replay. The error is a *StateError when the state allows
// no replay, and a *HeldError while another replay holds it. It wraps ErrNotFound when the store
// has none of this id.
func (s *Store) Begin(ctx context.Context, id string, by By, parked bool) (Lease, error) {
	// Before the database reads its clock, so that the deadline is before the end of the lease.
	lease := Lease{Deadline: time.Now().Add(leaseDuration - leaseMargin)}
	err := s.update(ctx, "begin a replay", func(q querier, now time.Time) error {
		d, err := s.lockFree(ctx, q, id, now)
		if err != nil {
			return err
		}
		if d.State == Parked && !parked {
			return &StateError{ID: d.ID, State: d.State, Generation: d.Generation}
		}
		if lease.action, err = s.record(ctx, q, ActionReplay, d, by, now, OutcomeStarted); err != nil {
			return err
		}
		lease.DeadLetter, lease.Resumed = *d, d.State == Replaying
		_, err = s.exec(ctx, q, `UPDATE dead_letters SET state = 'replaying', changed_at = $2, held_by = $3, held_until = $4 WHERE id = $1`,
			id, now, lease.action, now.Add(leaseDuration))
		return err
	})
	return lease, err
}

// lockFree locks a dead letter that waits for a person and that no replay holds.
func (s *Store) lockFree(ctx context.Context, q querier, id string, now time.Time) (*DeadLetter, error) {
	d, err := s.lock(ctx, q, "id", id)
	switch {
	case err != nil:
		return nil, err
	case d == nil:
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	case !slices.Contains(Waiting(), d.State):
		return nil, &StateError{ID: d.ID, State: d.State, Generation: d.Generation}
	case !d.HeldUntil.After(now):
		return d, nil
	}
	held := &HeldError{ID: id, Until: d.HeldUntil}
	if err := s.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&held.Who) },
		`SELECT a.who FROM dead_letters d JOIN dead_letter_actions a ON a.id = d.held_by WHERE d.id = $1`, id); err != nil {
		return nil, err
	}
	return nil, held
}

// AwaitRelease waits until no replay holds the dead letter, for up to 25 s. The error is that of
// ctx or of the database.
func (s *Store) AwaitRelease(ctx context.Context, id string) error {
	for end := time.Now().Add(releaseWait); time.Now().Before(end); {
		now, err := s.clock(ctx, s.db)
		held := false
		if err == nil {
			err = s.read(ctx, func(*sql.Rows) error { held = true; return nil },
				`SELECT id FROM dead_letters WHERE id = $1 AND state = 'replaying' AND held_until > $2`, id, now)
		}
		if err != nil {
			return s.wrap("wait for a replay", err)
		}
		if !held {
			return nil
		}
		if !loop.Sleep(ctx, releasePoll) {
			return ctx.Err()
		}
	}
	return nil
}

// The outcomes of a replay.
const (
	OutcomeStarted  = "begun"    // the replay has not finished
	OutcomeReplayed = "replayed" // the message is on its way again
	OutcomeAlready  = "already"  // an earlier replay of the same generation had done it
	OutcomeRefused  = "refused"  // not allowed; the dead letter waits as before
	OutcomeFailed   = "failed"   // unknown whether it was done; the next one resumes it
)

// Outcome is the result of a replay.
type Outcome struct {
	Result string `json:"result"`           // OutcomeReplayed and its like
	Reason string `json:"reason,omitempty"` // why it was refused, failed, or had no effect
}

// Refuse returns the outcome of a dead letter that must not be replayed.
func Refuse(format string, args ...any) Outcome {
	return Outcome{OutcomeRefused, fmt.Sprintf(format, args...)}
}

// Finish ends a replay, records its outcome, and releases the lease. When the lease has ended and
// another replay has taken it, Finish records the outcome only.
func (s *Store) Finish(ctx context.Context, lease Lease, out Outcome) error {
	state := Replayed
	switch {
	case out.Result == OutcomeFailed:
		state = Replaying
	case out.Result == OutcomeRefused && lease.Generation > 1:
		state = Parked
	case out.Result == OutcomeRefused:
		state = Open
	}
	return s.update(ctx, "finish a replay", func(q querier, now time.Time) error {
		// Locked, so that no other replay finishes meanwhile.
		if _, err := s.lock(ctx, q, "id", lease.ID); err != nil {
			return err
		}
		result := out.Result
		if result == OutcomeReplayed {
			err := s.query(ctx, q, func(*sql.Rows) error { result = OutcomeAlready; return nil },
				`SELECT id FROM dead_letter_actions WHERE dead_letter = $1 AND generation = $2 AND action = 'replay' AND outcome = 'replayed'`,
				lease.ID, lease.Generation)
			if err != nil {
				return err
			}
		}
		// A dead letter that failed again meanwhile is parked already, in its next generation.
		if _, err := s.exec(ctx, q, `UPDATE dead_letters SET state = $4, changed_at = $5, held_until = NULL
			WHERE id = $1 AND generation = $2 AND held_by = $3 AND state = 'replaying'`,
			lease.ID, lease.Generation, lease.action, string(state), now); err != nil {
			return err
		}
		_, err := s.exec(ctx, q, `UPDATE dead_letter_actions SET outcome = $2, detail = $3 WHERE id = $1`, lease.action, result, clean(out.Reason))
		return err
	})
}

// Discard ends the wait of a dead letter without a replay, and records by. Its errors are those of
// Begin.
func (s *Store) Discard(ctx context.Context, id string, by By) error {
	return s.update(ctx, "discard", func(q querier, now time.Time) error {
		d, err := s.lockFree(ctx, q, id, now)
		if err != nil {
			return err
		}
		if _, err := s.exec(ctx, q, `UPDATE dead_letters SET state = 'discarded', changed_at = $2 WHERE id = $1`, id, now); err != nil {
			return err
		}
		_, err = s.record(ctx, q, ActionDiscard, d, by, now, string(Discarded))
		return err
	})
}

// record writes the action on a dead letter that is locked. The error is a *StateError when the same use
// has changed the dead letter before. An attempt of the same use that did not finish, or that was
// refused, changed nothing for certain, so its row leaves the use to this one; it stays for the history,
// and a late end of that attempt still finds it.
func (s *Store) record(ctx context.Context, q querier, action string, d *DeadLetter, by By, now time.Time, outcome string) (id int64, err error) {
	var use any
	if by.Use != "" {
		use = indexed(by.Use)
		if _, err := s.exec(ctx, q, `UPDATE dead_letter_actions SET used = NULL WHERE dead_letter = $1 AND used = $2 AND outcome IN ('begun', 'failed', 'refused')`, d.ID, use); err != nil {
			return 0, err
		}
	}
	err = s.query(ctx, q, func(rows *sql.Rows) error { return rows.Scan(&id) },
		`INSERT INTO dead_letter_actions (dead_letter, generation, action, who, why, at, outcome, detail, used) VALUES ($1, $2, $3, $4, $5, $6, $7, '', $8)
			ON CONFLICT (dead_letter, used) WHERE used IS NOT NULL DO NOTHING RETURNING id`,
		d.ID, d.Generation, action, clean(by.Who), clean(by.Why), now, outcome, use)
	if err == nil && id == 0 {
		err = &StateError{ID: d.ID, State: d.State, Generation: d.Generation, Used: true}
	}
	return id, err
}

// Status says what a replay or a discard of a dead letter would do now.
type Status struct {
	// State is that of the subject, in the ledger's words, such as "SUCCESS, b38e9ad7-296". Empty:
	// no ledger has it.
	State string `json:"state,omitempty"`
	// Replay is the outcome that a replay would have. The state of the dead letter itself is not
	// considered.
	Replay Outcome `json:"replay"`
	// To is the topic or stream that a replay would publish to. Empty: a ledger replays it.
	To string `json:"replay_to,omitempty"`
	// Unsettled says why the dead letter must not be discarded yet, and what to do first. Empty: it
	// may be discarded.
	Unsettled string `json:"unsettled,omitempty"`
	// Remains says what stays as it is after a discard, such as a payout that is not made. Empty:
	// nothing.
	Remains string `json:"remains,omitempty"`
}

// String is the status in one line.
func (s Status) String() string {
	text := s.State
	add := func(format string, args ...any) {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf(format, args...)
	}
	switch s.Replay.Result {
	case OutcomeRefused:
		add("a replay would be refused: %s", s.Replay.Reason)
	case OutcomeAlready:
		add("a replay would have no effect: %s", s.Replay.Reason)
	case OutcomeReplayed:
		if s.To != "" {
			add("a replay would publish to %s", s.To)
		}
	}
	if s.Unsettled != "" {
		add("it must not be discarded yet: %s", s.Unsettled)
	}
	return text
}
