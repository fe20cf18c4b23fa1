package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// announcedOrigin begins the origin of a payout that the replay of a dead letter announced. No topic or stream of a
// payout has a name that begins so.
const announcedOrigin = "replayed dead letter "

// AnnouncedByReplay reports whether a person announced the payout by replaying a dead letter, instead of a record.
func (e *Entry) AnnouncedByReplay() bool { return strings.HasPrefix(e.Origin, announcedOrigin) }

// Announce accepts a payout on a person's word: the replay of a dead letter of class unannounced. The audit has the
// person, in the same transaction; the feeder enqueues the payout. A payout that has a row keeps it: the same request is
// answered with ReplayAlready, another one is refused. So is a payout of a cancelled promotion.
func (l *Ledger) Announce(ctx context.Context, r Record, by Replay) (Replayed, error) {
	if err := r.validate(); err != nil {
		return Replayed{}, err
	}
	if err := by.check(r.Key); err != nil {
		return Replayed{}, err
	}
	r.Origin = announcedOrigin + by.Letter + " from " + r.Origin
	var done Replayed
	w := want{promotions: []Promotion{r.Of()}, keys: []Key{r.Key}, bodies: true, lock: true}
	for {
		err := l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) (err error) {
			done, err = l.announce(ctx, u, s, &r, by)
			return err
		})
		switch {
		case errors.Is(err, errMadeMeanwhile):
			continue // there is a row now
		case err != nil && !errors.Is(err, errUndo):
			return Replayed{}, l.answer("announce", err)
		}
		return done, nil
	}
}

// errMadeMeanwhile rolls a transaction back that met a row which another one made after the read.
var errMadeMeanwhile = errors.New("the payout was made meanwhile")

func (l *Ledger) announce(ctx context.Context, u unit, s *snapshot, r *Record, by Replay) (Replayed, error) {
	if row := s.rows[r.Key]; row != nil {
		if !l.opts.SameRequest(row.Type, row.sent(), r.request()) {
			return Replayed{Outcome: ReplayRefused, Reason: "another request for it came first", State: row.State}, errUndo
		}
		return Replayed{Outcome: ReplayAlready, State: row.State}, errUndo
	}
	if s.promotions[r.Of()] == PromotionCancelled {
		return Replayed{Outcome: ReplayRefused, Reason: "its promotion is cancelled"}, errUndo
	}
	row := freshRow(r)
	row.Row, _, _ = l.policy.apply(row.Row, event{kind: evAccept, now: s.now, promotion: s.promotions[r.Of()]})
	row.Row, _, _ = l.policy.apply(row.Row, event{kind: evNotEnqueued, now: s.now}) // the feeder enqueues it
	if err := u.insert(ctx, []*stored{row}); err != nil {
		return Replayed{}, err
	}
	if row.ID == 0 {
		return Replayed{}, errMadeMeanwhile
	}
	row.was = row.Row
	done := Replayed{Outcome: ReplayDone, State: row.State}
	if by.DryRun {
		return done, errUndo
	}
	if _, err := u.querier().exec(ctx, sqlReplay, by.Letter, by.Generation, row.ID, s.now); err != nil {
		return Replayed{}, err
	}
	return done, writeAudit(ctx, u.querier(), s.now, r.Key, Audit{Who: by.Who, Why: by.Why, Action: "announce",
		Detail: fmt.Sprintf("letter %s, generation %d: accepted without a record", by.Letter, by.Generation)})
}
