package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Replay is a request to try a FAILED or UNKNOWN payout again.
type Replay struct {
	DeadLetter string // id of the dead letter
	Generation int    // number of the replay of the dead letter, from 1
	Who, Why   string // for the audit; both required
	DryRun     bool   // return the result without a change; who and why may be empty
}

func (r *Replay) check(k payouts.Key) error {
	r.DeadLetter, r.Who, r.Why = clean(r.DeadLetter), clean(r.Who), clean(r.Why)
	if r.DeadLetter == "" || r.Generation < 1 || !r.DryRun && (r.Who == "" || r.Why == "") {
		return rules.Invalid("payout %s: a replay needs a dead letter, a generation from 1, who and why", k)
	}
	return nil
}

// ReplayResult is the result of a replay.
type ReplayResult struct {
	Outcome ReplayOutcome
	Reason  string      // why it was refused
	State   rules.State // of the payout now
}

// ReplayOutcome is the outcome of a replay.
type ReplayOutcome string

// The outcomes of a replay.
const (
	ReplayDone    ReplayOutcome = "replayed" // the payout is due again; the feeder enqueues it
	ReplayAlready ReplayOutcome = "already"  // replayed before, in this generation; nothing changed
	ReplayRefused ReplayOutcome = "refused"  // nothing changed; Reason has the reason
)

// Replay changes a FAILED payout to PENDING and an UNKNOWN one to AMBIGUOUS. All attempts are
// available again; the request and the idempotency key are unchanged. A possible charge is sent
// again only within the time of the key, and is otherwise looked up. A late answer that states a
// charge makes the charge possible again.
//
// Each generation of a dead letter has one effect. A refused replay may be repeated. A payout
// without a row returns ErrNotFound.
func (l *Ledger) Replay(ctx context.Context, k payouts.Key, r Replay) (ReplayResult, error) {
	if err := k.Validate(); err != nil {
		return ReplayResult{}, err
	}
	if err := r.check(k); err != nil {
		return ReplayResult{}, err
	}
	var done ReplayResult
	w := readRequest{promotions: []payouts.Promotion{k.OfPromotion()}, keys: []payouts.Key{k}, lock: true}
	err := l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
		row := read.rows[k]
		if row == nil {
			return notFound(k)
		}
		before := row.State
		done = ReplayResult{State: before}
		n, err := tx.querier().exec(ctx, sqlReplay, r.DeadLetter, r.Generation, row.ID, read.now)
		if err != nil {
			return err
		}
		if n == 0 {
			return l.replayedBefore(ctx, tx, row, r, &done)
		}
		charged, err := paidAttempt(ctx, tx.querier(), row.ID)
		if err != nil {
			return err
		}
		if charged != "" && !row.MaybeDone {
			// Denied by an operator, or answered later. Assume the oldest possible use of the key.
			row.MaybeDone, row.FirstSentAt = true, row.AcceptedAt
		}
		next, eff, d := row.Row.Apply(l.policy, rules.Event{Kind: rules.EventReplay, Now: read.now, Group: read.promotions[k.OfPromotion()]})
		if d.Refused != 0 {
			done.Outcome, done.Reason = ReplayRefused, refusal(d.Refused, row.Row)
			return errRollback
		}
		row.Row = next
		done.Outcome, done.State = ReplayDone, next.State
		if r.DryRun {
			return errRollback
		}
		effects := l.newEffectSet(read, writes)
		effects.add(row, eff, nil, "")
		if err := writeAudit(ctx, tx.querier(), read.now, k, Audit{Who: r.Who, Why: r.Why, Action: "replay",
			Detail: fmt.Sprintf("dead letter %s, generation %d: %s to %s", r.DeadLetter, r.Generation, before, next.State)}); err != nil {
			return err
		}
		return effects.writeTo(ctx, tx)
	})
	if err != nil && !errors.Is(err, errRollback) {
		return ReplayResult{}, l.wrapDatabase("replay", err)
	}
	return done, nil
}

// wrapDatabase wraps errors of the database and returns ErrNotFound and ErrRefused unchanged.
func (l *Ledger) wrapDatabase(what string, err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused) {
		return err
	}
	return l.wrap(what, err)
}

// errRollback rolls back a transaction without changes.
var errRollback = errors.New("nothing to change")

const (
	sqlReplay   = `INSERT INTO ledger_replays (letter, generation, payout_id, at) VALUES ($1, $2, $3, $4) ON CONFLICT (letter, generation) DO NOTHING`
	sqlReplayed = `SELECT payout_id FROM ledger_replays WHERE letter = $1 AND generation = $2`
	sqlPaid     = `SELECT answer FROM attempts WHERE payout_id = $1 AND outcome = 'paid' ORDER BY epoch DESC LIMIT 1`
)

// paidAttempt returns the answer of an attempt with the outcome paid, or "". A payout that is not
// SUCCESS has one when the answer was late.
func paidAttempt(ctx context.Context, q querier, payoutID int64) (answer string, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan(&answer) }, sqlPaid, payoutID)
	return answer, err
}

// replayedBefore sets the result for a generation that is already in ledger_replays.
func (l *Ledger) replayedBefore(ctx context.Context, tx transaction, row *storedRow, r Replay, done *ReplayResult) error {
	var of int64
	if err := tx.querier().query(ctx, func(s scanner) error { return s.Scan(&of) }, sqlReplayed, r.DeadLetter, r.Generation); err != nil {
		return err
	}
	done.Outcome = ReplayAlready
	if of != row.ID {
		done.Outcome, done.Reason = ReplayRefused, "the dead letter belongs to another payout"
		return errRollback
	}
	if r.DryRun {
		return errRollback
	}
	return nil // the commit confirms that the first replay is there to stay
}
