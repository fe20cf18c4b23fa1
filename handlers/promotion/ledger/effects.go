package ledger

import (
	"cmp"
	"context"
	"slices"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// effectSet collects the effects of a batch of transitions. writeTo adds them to the write set of
// the transaction.
type effectSet struct {
	outcomeEvents bool
	read          *readResult
	writes        *writeSet
	rows          []rowEffects
}

type rowEffects struct {
	row     *storedRow
	effects rules.Writes
	record  *payouts.Record // the offered record of a conflict
	route   string
}

func (l *Ledger) newEffectSet(read *readResult, writes *writeSet) *effectSet {
	return &effectSet{outcomeEvents: l.opts.OutcomeEvents, read: read, writes: writes}
}

func (s *effectSet) add(row *storedRow, eff rules.Writes, r *payouts.Record, route string) {
	if eff == (rules.Writes{}) {
		return
	}
	s.rows = append(s.rows, rowEffects{row, eff, r, route})
}

// inserted is called after rows were inserted before the commit. It drops the effects on rows that
// another instance inserted first.
func (s *effectSet) inserted(rows []*storedRow) {
	for _, r := range rows {
		r.before = r.Row
	}
	s.rows = slices.DeleteFunc(s.rows, func(e rowEffects) bool { return e.row.ID == 0 })
}

func (s *effectSet) writeTo(ctx context.Context, tx transaction) error {
	for _, row := range s.read.rows {
		if row.ID != 0 && row.Row != row.before {
			row.Version = row.before.Version + 1 // several changes in one batch are one
			s.writes.rows = append(s.writes.rows, row)
		}
	}
	slices.SortFunc(s.writes.rows, func(x, y *storedRow) int { return payouts.CompareKeys(x.Key, y.Key) })

	deltas := map[summaryID]*summaryDelta{}
	var dead []int64
	for _, e := range s.rows {
		if e.effects.Attempt != nil {
			s.writes.attempts = append(s.writes.attempts, &attemptRow{e.row.ID, e.row.Promotion, payouts.AttemptOf(*e.effects.Attempt)})
		}
		if e.effects.Settled || e.effects.LeftState != "" {
			id := summaryID{e.row.OfPromotion(), e.row.SummaryID}
			if deltas[id] == nil {
				deltas[id] = &summaryDelta{summaryID: id}
			}
			deltas[id].count(e.effects.LeftState, -1)
			if e.effects.Settled {
				deltas[id].count(e.row.State, 1)
			}
		}
		if e.effects.Settled && s.outcomeEvents {
			s.writes.outbox = append(s.writes.outbox, outcomeEvent(e.row))
		}
		switch {
		case e.effects.DeadLetterClass == rules.ClassConflict:
			s.writes.outbox = append(s.writes.outbox, conflictDeadLetter(e.record, s.read.now))
		case e.effects.DeadLetterClass != "":
			dead = append(dead, e.row.ID)
		}
	}
	for _, d := range deltas {
		s.writes.summaries = append(s.writes.summaries, d)
	}
	sorted.By(s.writes.summaries, func(x, y *summaryDelta) int {
		return cmp.Or(payouts.ComparePromotions(x.Promotion, y.Promotion), cmp.Compare(x.summary, y.summary))
	})
	if len(dead) == 0 {
		return nil
	}
	messages, err := tx.failedMessages(ctx, dead)
	if err != nil {
		return err
	}
	for _, e := range s.rows {
		if class := e.effects.DeadLetterClass; class != "" && class != rules.ClassConflict {
			s.writes.outbox = append(s.writes.outbox, payoutDeadLetter(e, messages[e.row.ID], s.read.now))
		}
	}
	return nil
}

func (d *summaryDelta) count(s rules.State, n int64) {
	switch s {
	case rules.Success:
		d.paid += n
	case rules.Failed:
		d.failed += n
	case rules.Unknown:
		d.unknown += n
	case rules.Cancelled:
		d.cancelled += n
	}
}

func sortInserts(rows []*storedRow) {
	slices.SortFunc(rows, func(a, b *storedRow) int { return payouts.CompareKeys(a.Key, b.Key) })
}
