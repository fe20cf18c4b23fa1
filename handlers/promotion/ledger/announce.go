package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// announcedOrigin is the prefix of the origin of a payout that was announced by the replay of a
// dead letter. No topic or stream name begins with it.
const announcedOrigin = "replayed dead letter "

// AnnouncedByReplay reports whether an operator announced the payout by replaying a dead letter.
func (e *Payout) AnnouncedByReplay() bool { return strings.HasPrefix(e.Origin, announcedOrigin) }

// Announce accepts a payout by the replay of a dead letter of class unannounced. The same
// transaction writes the audit; the feeder enqueues the payout. An existing row is kept: the same
// request returns ReplayAlready, another request is refused. A payout of a cancelled promotion is
// refused.
func (l *Ledger) Announce(ctx context.Context, r payouts.Record, by Replay) (ReplayResult, error) {
	if err := r.Validate(); err != nil {
		return ReplayResult{}, err
	}
	if err := by.check(r.Key); err != nil {
		return ReplayResult{}, err
	}
	r.Origin = announcedOrigin + by.DeadLetter + " from " + r.Origin
	var done ReplayResult
	w := readRequest{promotions: []payouts.Promotion{r.OfPromotion()}, keys: []payouts.Key{r.Key}, messages: true, lock: true}
	for {
		err := l.transact(ctx, w, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) (err error) {
			done, err = l.announce(ctx, tx, read, &r, by)
			return err
		})
		switch {
		case errors.Is(err, errInsertedMeanwhile):
			continue // the row exists now
		case err != nil && !errors.Is(err, errRollback):
			return ReplayResult{}, l.wrapDatabase("announce", err)
		}
		return done, nil
	}
}

// errInsertedMeanwhile rolls back when another transaction has inserted the row after the read.
var errInsertedMeanwhile = errors.New("another transaction inserted the payout")

func (l *Ledger) announce(ctx context.Context, tx transaction, read *readResult, r *payouts.Record, by Replay) (ReplayResult, error) {
	if row := read.rows[r.Key]; row != nil {
		if !l.opts.SameRequest(row.Type, row.requestToSend(), r.RequestToSend()) {
			return ReplayResult{Outcome: ReplayRefused, Reason: "another request for it came first", State: row.State}, errRollback
		}
		done := ReplayResult{Outcome: ReplayAlready, State: row.State}
		if by.DryRun {
			return done, errRollback
		}
		return done, nil // the commit confirms that the row is there to stay
	}
	if read.promotions[r.OfPromotion()] == rules.GroupCancelled {
		return ReplayResult{Outcome: ReplayRefused, Reason: "its promotion is cancelled"}, errRollback
	}
	row := newRow(r)
	row.Row, _, _ = row.Row.Apply(l.policy, rules.Event{Kind: rules.EventAccept, Now: read.now, Group: read.promotions[r.OfPromotion()]})
	row.Row, _, _ = row.Row.Apply(l.policy, rules.Event{Kind: rules.EventNotEnqueued, Now: read.now}) // the feeder enqueues it
	if err := tx.insert(ctx, []*storedRow{row}); err != nil {
		return ReplayResult{}, err
	}
	if row.ID == 0 {
		return ReplayResult{}, errInsertedMeanwhile
	}
	row.before = row.Row
	done := ReplayResult{Outcome: ReplayDone, State: row.State}
	if by.DryRun {
		return done, errRollback
	}
	if _, err := tx.querier().exec(ctx, sqlReplay, by.DeadLetter, by.Generation, row.ID, read.now); err != nil {
		return ReplayResult{}, err
	}
	return done, writeAudit(ctx, tx.querier(), read.now, r.Key, Audit{Who: by.Who, Why: by.Why, Action: "announce",
		Detail: fmt.Sprintf("dead letter %s, generation %d: accepted without a record", by.DeadLetter, by.Generation)})
}
