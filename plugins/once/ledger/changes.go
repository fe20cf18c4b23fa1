package ledger

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// changes collects what transitions write.
type changes struct {
	read    *readResult
	rows    map[rowKey]*change
	deltas  deltaSet
	parked  map[groupID]bool
	attempt []*attemptRow
	results []*resultRow
	// publishes reports whether the results of a kind are published.
	publishes func(kind int64) bool
}

// change is what happens to one effect in a transaction.
type change struct {
	row     *storedRow
	due     *dueRow
	problem *problemRow
	solved  bool
}

func (l *Ledger) newChanges(read *readResult) *changes {
	return &changes{read: read, rows: map[rowKey]*change{}, deltas: deltaSet{}, parked: map[groupID]bool{}, publishes: l.publishes}
}

func (c *changes) of(row *storedRow) *change {
	ch := c.rows[row.rowKey]
	if ch == nil {
		ch = &change{row: row}
		c.rows[row.rowKey] = ch
	}
	return ch
}

// stored is the part of a row that the table has.
func stored(r rules.Row) rules.Row {
	r.Queue, r.QueueDue, r.Version = "", time.Time{}, 0
	return r
}

// parkedAt is the time of a due row that is parked.
var parkedAt time.Time //nolint:gochecknoglobals // the zero value

// apply adds a transition of row to next. claimed: the row in once_due is written in any case, because
// it was due and a claim has met it.
func (c *changes) apply(row *storedRow, next rules.Row, eff rules.Writes, claimed bool) {
	ch, before := c.of(row), row.Row
	row.Row = next
	if claimed || next != before {
		at := c.read.now
		if next.Queue == rules.QueueRetry && !next.QueueDue.IsZero() {
			at = next.QueueDue
		}
		ch.due = &dueRow{rowKey: row.rowKey, lane: row.lane, calling: next.State == rules.Sending, at: at, effect: row}
	}
	if a := eff.Attempt; keeps(a) {
		c.attempt = append(c.attempt, &attemptRow{row.rowKey, *a})
	}
	if eff.LeftState != "" {
		c.deltas.of(row).count(eff.LeftState, -1)
		ch.problem, ch.solved = nil, true
	}
	if eff.Settled {
		c.deltas.of(row).count(next.State, 1)
		if next.State == rules.Failed || next.State == rules.Unknown {
			ch.problem = &problemRow{row.rowKey, next.State, c.read.now, cmp.Or(eff.DeadLetterClass, next.LastClass, rules.ClassFailed)}
			ch.solved = false
		}
		if c.publishes(row.kind) {
			c.results = append(c.results, resultOfEnd(row, ch.problem))
		}
	}
}

// resultOfEnd is the result of an effect that has just been settled. problem is nil unless it failed or is unknown.
func resultOfEnd(row *storedRow, problem *problemRow) *resultRow {
	r := &resultRow{rowKey: row.rowKey, state: row.State, at: row.SettledAt, attempts: row.Attempts, receipt: row.Receipt}
	if problem != nil {
		r.class, r.error = cmp.Or(row.LastClass, problem.class), row.LastError
	}
	return r
}

// park has the due row wait for the resume of its group.
func (c *changes) park(row *storedRow) {
	c.rows[row.rowKey].due.at = parkedAt
	if g := row.of(); !c.read.groups[g].parked {
		c.parked[g] = true
	}
}

// writeTo adds everything, sorted, to a write set.
func (c *changes) writeTo(w *writeSet) {
	for _, k := range sorted.Of(maps.Keys(c.rows), compareKeys) {
		ch := c.rows[k]
		row := ch.row
		if row.changed() {
			w.rows = append(w.rows, row)
		}
		switch {
		case ch.due == nil:
		case row.State.Settled():
			w.settled = append(w.settled, ch.due)
		default:
			w.due = append(w.due, ch.due)
		}
		if ch.solved {
			w.solved = append(w.solved, &problemRow{rowKey: k})
		}
		if ch.problem != nil {
			w.problems = append(w.problems, ch.problem)
		}
	}
	w.attempts = append(w.attempts, c.attempt...)
	sorted.By(w.attempts, func(a, b *attemptRow) int {
		return cmp.Or(compareKeys(a.rowKey, b.rowKey), cmp.Compare(a.Epoch, b.Epoch))
	})
	w.results = append(w.results, c.results...)
	w.deltas = append(w.deltas, c.deltas.sorted()...)
	w.parked = append(w.parked, uniqueGroups(slices.Collect(maps.Keys(c.parked)))...)
}

// deltaSet counts the effects of a transaction by group and part.
type deltaSet map[groupPart]*deltaRow

func (s deltaSet) of(r *storedRow) *deltaRow {
	id := groupPart{r.kind, r.group, r.part}
	if s[id] == nil {
		s[id] = &deltaRow{groupPart: id}
	}
	return s[id]
}

// sorted returns the rows, with one random number.
func (s deltaSet) sorted() []*deltaRow {
	rows := slices.Collect(maps.Values(s))
	sorted.By(rows, func(a, b *deltaRow) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.group, b.group), cmp.Compare(a.part, b.part))
	})
	number := randomNumber()
	for _, d := range rows {
		d.number = number
	}
	return rows
}

// randomNumber is that of the deltas of one transaction. Two transactions with the same number and the
// same group would be a unique violation, and the transaction would run again.
func randomNumber() int64 { return rand.Int64() }
