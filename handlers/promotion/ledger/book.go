package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// book gathers the effects of a batch of transitions into the changes of its transaction.
type book struct {
	l       *Ledger
	s       *snapshot
	c       *changes
	entries []bookEntry
}

type bookEntry struct {
	row     *stored
	eff     effects
	record  *Record // the offered record of a conflict
	handler string
}

func (l *Ledger) newBook(s *snapshot, c *changes) *book { return &book{l: l, s: s, c: c} }

func (b *book) add(row *stored, eff effects, r *Record, handler string) {
	if eff.attempt == nil && !eff.settled && eff.left == "" && eff.dead == "" {
		return
	}
	b.entries = append(b.entries, bookEntry{row, eff, r, handler})
}

// made is called after rows were made before the commit: it forgets what was decided about those that another
// instance made first.
func (b *book) made(rows []*stored) {
	for _, r := range rows {
		r.was = r.Row
	}
	b.entries = slices.DeleteFunc(b.entries, func(e bookEntry) bool { return e.row.ID == 0 })
}

// close turns everything into changes.
func (b *book) close(ctx context.Context, u unit) error {
	for _, row := range b.s.rows {
		if row.ID != 0 && row.Row != row.was {
			row.Version = row.was.Version + 1 // several changes in one batch are one
			b.c.rows = append(b.c.rows, &row.Row)
		}
	}
	slices.SortFunc(b.c.rows, func(x, y *Row) int { return compareKeys(x.Key, y.Key) })

	deltas := map[summaryID]*summaryDelta{}
	var dead []int64
	for _, e := range b.entries {
		if e.eff.attempt != nil {
			b.c.attempts = append(b.c.attempts, attemptLine{e.row.ID, *e.eff.attempt})
		}
		if e.eff.settled || e.eff.left != "" {
			id := summaryID{e.row.Of(), e.row.SummaryID}
			if deltas[id] == nil {
				deltas[id] = &summaryDelta{summaryID: id}
			}
			deltas[id].count(e.eff.left, -1)
			if e.eff.settled {
				deltas[id].count(e.row.State, 1)
			}
		}
		if e.eff.settled && b.l.opts.Results {
			b.c.outbox = append(b.c.outbox, outcomeLine(e.row, b.s.now))
		}
		switch {
		case e.eff.dead == ClassConflict:
			b.c.outbox = append(b.c.outbox, conflictLine(e.record, b.s.now))
		case e.eff.dead != "":
			dead = append(dead, e.row.ID)
		}
	}
	for _, d := range deltas {
		b.c.summaries = append(b.c.summaries, *d)
	}
	slices.SortFunc(b.c.summaries, func(x, y summaryDelta) int {
		if c := comparePromotions(x.Promotion, y.Promotion); c != 0 {
			return c
		}
		return compare(x.summary, y.summary)
	})
	if len(dead) == 0 {
		return nil
	}
	bodies, err := u.deadBodies(ctx, dead)
	if err != nil {
		return err
	}
	for _, e := range b.entries {
		if e.eff.dead != "" && e.eff.dead != ClassConflict {
			b.c.outbox = append(b.c.outbox, deadLine(e, bodies[e.row.ID], b.s.now))
		}
	}
	return nil
}

func (d *summaryDelta) count(s State, n int64) {
	switch s {
	case Success:
		d.paid += n
	case Failed:
		d.failed += n
	case Unknown:
		d.unknown += n
	case Cancelled:
		d.cancelled += n
	}
}

func deadLine(e bookEntry, b deadBody, now time.Time) outboxLine {
	first := b.firstFailedAt
	if first.IsZero() {
		first = now
	}
	text := e.row.LastError
	if text == "" {
		text = "payout ended " + string(e.row.State)
	}
	return outboxLine{kind: OutboxDead, key: e.row.Key, class: e.eff.dead, err: text, payload: b.payload, headers: b.headers,
		recordKey: b.recordKey, origin: b.origin, handler: clean(e.handler), attempts: e.row.Attempts, firstFailedAt: first, createdAt: now}
}

// ResultEvent is the payload of an outcome event: how a payout ended.
type ResultEvent struct {
	Type           Type      `json:"type"`
	PromotionID    int64     `json:"promotionId"`
	SummaryID      int64     `json:"promotionSummaryId"`
	TargetID       int64     `json:"targetId"`
	State          State     `json:"state"`
	TransactionKey string    `json:"transactionKey,omitempty"`
	Attempts       int       `json:"attempts"`
	Class          string    `json:"class,omitempty"`
	SettledAt      time.Time `json:"settledAt"`
}

func outcomeLine(r *stored, now time.Time) outboxLine {
	payload, _ := json.Marshal(ResultEvent{Type: r.Type, PromotionID: r.Promotion, SummaryID: r.SummaryID, TargetID: r.Target,
		State: r.State, TransactionKey: r.TransactionKey, Attempts: r.Attempts, Class: r.LastClass, SettledAt: r.SettledAt}) // always encodes
	return outboxLine{kind: OutboxResult, key: r.Key, class: string(r.State), payload: payload,
		recordKey: strconv.AppendInt(nil, r.Target, 10), attempts: r.Attempts, createdAt: now}
}

func sortInserts(rows []*stored) {
	slices.SortFunc(rows, func(a, b *stored) int { return compareKeys(a.Key, b.Key) })
}

// clean makes text storable, of a bounded length.
func clean(s string) string { return sqldb.Text(s, maxTextBytes) }

func notFound(k Key) error { return fmt.Errorf("ledger: payout %s: %w", k, ErrNotFound) }
