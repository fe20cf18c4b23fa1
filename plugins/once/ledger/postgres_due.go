package ledger

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// In PostgreSQL a row of once_due has many effects: docs/decisions/0036-rows-of-due-effects.md. This file decides
// which, and the rest of the package writes one dueRow per effect.

const (
	// dueIDs and dueBytes bound a row of once_due that waits. A claim that takes a part of it writes the rest
	// again, and a text of more than 2,000 bytes would be compressed.
	dueIDs, dueBytes = 50, 1800

	// idSeparator is in no id, because an id has no control characters.
	idSeparator = "\n"
)

// newDueNumber returns the number of a row of once_due. It is random, so nobody has to be asked for it.
func newDueNumber() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// dueGroup is what the effects of one row of once_due have in common.
type dueGroup struct {
	groupID
	lane    int64
	calling bool
	at      int64 // Unix microseconds; 0: parked
}

// newDue is a row of once_due to insert.
type newDue struct {
	dueGroup
	number int64
	at     time.Time
	ids    []string
	bytes  int
}

// dueInserts collects rows of once_due.
type dueInserts struct {
	rows []*newDue
	open map[dueGroup]*newDue // that may get further ids
}

// add gives an effect a new row of once_due.
func (c *dueInserts) add(r *storedRow, calling bool, at time.Time) {
	g := dueGroup{groupID: r.of(), lane: r.lane, calling: calling}
	if !at.IsZero() {
		g.at = at.UnixMicro()
	}
	row := c.open[g]
	// The effects of a claim stay together, because the answer of the last one deletes their row.
	if row == nil || !calling && (len(row.ids) == dueIDs || row.bytes+len(r.id) > dueBytes) {
		row = &newDue{dueGroup: g, number: newDueNumber(), at: at}
		if c.open == nil {
			c.open = map[dueGroup]*newDue{}
		}
		c.open[g] = row
		c.rows = append(c.rows, row)
	}
	row.ids, row.bytes = append(row.ids, r.id), row.bytes+len(r.id)+len(idSeparator)
	r.due = row.number
}

// join adds an effect to the row of calls whose number it has already.
func (c *dueInserts) join(r *storedRow, number int64, at time.Time) {
	i := slices.IndexFunc(c.rows, func(d *newDue) bool { return d.number == number })
	if i < 0 {
		i = len(c.rows)
		c.rows = append(c.rows, &newDue{dueGroup: dueGroup{groupID: r.of(), lane: r.lane, calling: true}, number: number, at: at})
	}
	c.rows[i].ids, r.due = append(c.rows[i].ids, r.id), number
}

// number gives rows to accept their numbers. acceptSQL makes the rows of once_due of what is new.
func number(rows []*storedRow) {
	var c dueInserts
	for _, r := range rows {
		if r.due = 0; r.State.Settled() {
			continue
		}
		at := r.AcceptedAt
		if r.NextAttemptAt.After(at) {
			at = r.NextAttemptAt
		}
		c.add(r, false, at)
		if r.hint = 0; r.grace > 0 && at.Equal(r.AcceptedAt) {
			r.hint = r.due
		}
	}
}

// lockedDue is a row of once_due that a claim has locked.
type lockedDue struct {
	number int64
	ids    []string        // without those that were answered
	left   map[string]bool // ids that this transaction moves or settles
	parked bool
	cut    bool // the limit of the claim has left ids, or the lock of the group was not free
}

func (d *lockedDue) rest() []string {
	return slices.DeleteFunc(slices.Clone(d.ids), func(id string) bool { return d.left[id] })
}

// dueChanges is what a transaction writes to once_due.
type dueChanges struct {
	dueInserts
	changed  []*storedRow       // effects to update
	deleted  []int64            // numbers of rows that it has locked and that are empty
	complete []int64            // numbers of rows whose last answer this transaction may have
	ended    map[int64]int      // calls of other rows whose end is stored, by number
	removed  map[int64][]string // ids to take from other rows that wait
}

// planDue turns what changes for effects into what changes for rows of once_due. An effect that gets another row is
// updated, too, because it has the number.
func (tx *pgTransaction) planDue(w *writeSet) *dueChanges {
	c := &dueChanges{changed: w.rows, ended: map[int64]int{}, removed: map[int64][]string{}}
	updated := make(map[*storedRow]bool, len(w.rows))
	for _, r := range w.rows {
		updated[r] = true
	}
	for _, d := range w.settled {
		tx.leave(c, d.effect)
		d.effect.due = 0
	}
	for _, d := range w.due {
		if locked := tx.locked[d.effect.due]; locked != nil && d.at.IsZero() {
			locked.parked = true // with all of its effects, which are of the same group
			continue
		}
		tx.leave(c, d.effect)
		if number := tx.begun[d.effect.rowKey]; number != 0 && !d.effect.changed() {
			c.join(d.effect, number, d.at)
			continue
		}
		c.add(d.effect, d.calling, d.at)
		if !updated[d.effect] {
			c.changed = append(c.changed, d.effect)
		}
	}
	slices.SortFunc(c.changed, func(a, b *storedRow) int { return compareKeys(a.rowKey, b.rowKey) })
	for _, number := range slices.Sorted(maps.Keys(tx.locked)) {
		if len(tx.locked[number].rest()) == 0 {
			c.deleted = append(c.deleted, number)
		}
	}
	if len(tx.locked) == 0 { // a claim waits for no row of once_due
		c.complete = tx.s.batches.complete(c.ended)
	}
	return c
}

// leave notes that an effect is in its row of once_due no more.
func (tx *pgTransaction) leave(c *dueChanges, r *storedRow) {
	switch locked := tx.locked[r.due]; {
	case r.due == 0:
	case locked != nil:
		locked.left[r.id] = true
	case r.read.LeaseUntil.IsZero():
		c.removed[r.due] = append(c.removed[r.due], r.id)
	default:
		c.ended[r.due]++
	}
}

// queue adds the statements. Rows of once_due are written after the effects: see the package comment.
func (c *dueChanges) queue(b *pgx.Batch, tx *pgTransaction) {
	if len(c.rows) > 0 {
		var numbers, kinds, lanes []int64
		var calling []bool
		var at []pgtype.Timestamptz
		var groups, ids []string
		for _, r := range c.rows {
			numbers, kinds, lanes, calling = append(numbers, r.number), append(kinds, r.kind), append(lanes, r.lane), append(calling, r.calling)
			at, groups, ids = append(at, stamp(r.at)), append(groups, r.name), append(ids, strings.Join(r.ids, idSeparator))
		}
		if len(c.rows) == 1 {
			b.Queue(pgAddDue, numbers[0], kinds[0], lanes[0], calling[0], at[0], groups[0], ids[0])
		} else {
			b.Queue(pgAddAllDue, numbers, kinds, lanes, calling, at, groups, ids)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(tx.locked)) {
		locked := tx.locked[number]
		rest := locked.rest()
		switch ids := strings.Join(rest, idSeparator); {
		case len(rest) == 0:
		case locked.parked:
			b.Queue(pgParkDue, number, ids)
		case len(locked.left) > 0:
			b.Queue(pgShortenDue, number, ids)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(c.removed)) {
		b.Queue(pgRemoveDue, number, c.removed[number])
		b.Queue(pgDeleteRemovedDue, number, c.removed[number])
	}
	if len(c.deleted) > 0 {
		b.Queue(pgDeleteDue, c.deleted)
	}
	if len(c.complete) > 0 {
		slices.Sort(c.complete)
		b.Queue(pgDeleteEndedDue, c.complete)
	}
}

// dueBatches counts the answers of the calls of this instance by row of once_due, so that the transaction that stores
// the last answer looks whether it can delete the row. Nothing else depends on the counts, which a killed process or the
// answer of another one makes wrong: a row without a call is also deleted when its leases have ended, by a claim or a sweep.
type dueBatches struct {
	mu    sync.Mutex
	calls map[int64]*dueBatch
	rowOf map[rowKey]int64 // the numbers of calls
	spent []int64          // completed by transactions that ended at the same time
}

type dueBatch struct {
	row  *newDue
	left int // calls whose end is not committed
}

// of counts the ends of calls that this instance has begun, by row of once_due. stored says which of them count;
// nil: all of them.
func (s *dueBatches) of(ends []*settleItem, stored []bool) map[int64]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := map[int64]int{}
	for i, e := range ends {
		if number := s.rowOf[e.key]; number != 0 && (stored == nil || stored[i]) {
			ended[number]++
		}
	}
	return ended
}

func (s *dueBatches) add(row *newDue) {
	if s.calls == nil {
		s.calls, s.rowOf = map[int64]*dueBatch{}, map[rowKey]int64{}
	}
	s.calls[row.number] = &dueBatch{row, len(row.ids)}
	for _, id := range row.ids {
		s.rowOf[rowKey{row.kind, row.name, id}] = row.number
	}
}

func (s *dueBatches) forget(row *newDue) {
	delete(s.calls, row.number)
	for _, id := range row.ids {
		if key := (rowKey{row.kind, row.name, id}); s.rowOf[key] == row.number {
			delete(s.rowOf, key)
		}
	}
}

// complete returns the rows that are without a call when the ended calls are committed, and those that were before.
func (s *dueBatches) complete(ended map[int64]int) (numbers []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	numbers, s.spent = s.spent, nil
	for number, n := range ended {
		if b := s.calls[number]; b != nil && b.left == n {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// committed notes what a transaction has committed.
func (s *dueBatches) committed(c *dueChanges, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number, n := range c.ended {
		b := s.calls[number]
		if b == nil {
			continue
		}
		if b.left -= n; b.left == 0 {
			s.forget(b.row)
			if !slices.Contains(c.complete, number) {
				s.spent = append(s.spent, number)
			}
		}
	}
	added := false
	for _, row := range c.rows {
		if row.calling && !row.at.IsZero() {
			s.add(row)
			added = true
		}
	}
	if added && len(s.calls) > 100 { // what others have answered is found by its time
		for _, b := range s.calls {
			if b.row.at.Before(now) {
				s.forget(b.row)
			}
		}
	}
}

// lockDue locks rows of once_due that are due, the oldest first, or those of the request, until they have enough
// effects. How many rows that takes is known after the first claims.
func (tx *pgTransaction) lockDue(b *pgx.Batch, d *dueRequest, read *readResult, rows int, got, total *int) {
	query, args := pgLockDue, []any{d.kind, d.lane, rows, tx.s.skewMicros(), tx.known()}
	if d.rows != nil {
		query, args = pgLockRows, []any{d.kind, d.rows, rows, tx.known()}
	}
	tx.queueLock(b, d, read, query, args, got, total)
}

// visitedGroups is how many groups a turn visits in addition to its limit, because some have nothing that is due.
const visitedGroups = 8

// lockTurn locks what is due of the groups that are next.
func (tx *pgTransaction) lockTurn(b *pgx.Batch, d *dueRequest, read *readResult) {
	var got, total int
	tx.queueLock(b, d, read, pgLockTurn, []any{d.kind, d.lane, d.limit, tx.s.skewMicros(), tx.known(), *d.after, d.limit + visitedGroups}, &got, &total)
}

// known returns the rows that are locked.
func (tx *pgTransaction) known() []int64 {
	return slices.AppendSeq(make([]int64, 0, len(tx.locked)), maps.Keys(tx.locked))
}

// queueLock adds a statement that locks rows of once_due, and takes their effects.
func (tx *pgTransaction) queueLock(b *pgx.Batch, d *dueRequest, read *readResult, query string, args []any, got, total *int) {
	b.Queue(query, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			locked, group, ids, free := &lockedDue{left: map[string]bool{}}, "", "", false
			if err := rows.Scan(&locked.number, &group, &ids, &free); err != nil {
				return err
			}
			if locked.number == 0 {
				read.turn = group
				read.alone = ids == "1" && group != "" && (*d.after == "" || *d.after == group)
				continue
			}
			*got++
			tx.locked[locked.number] = locked
			if ids == "" {
				continue
			}
			locked.ids = strings.Split(ids, idSeparator)
			*total += len(locked.ids)
			for _, id := range locked.ids {
				if locked.cut = !free || len(read.due) == d.limit; locked.cut {
					break
				}
				key := rowKey{d.kind, group, id}
				read.due, tx.dueOf[key] = append(read.due, key), locked.number
			}
		}
		return rows.Err()
	})
}

// restOf returns the rows of a request that may have more effects than it has got. all: every row was asked for, so one
// that is not locked is gone, parked or claimed by another transaction.
func (tx *pgTransaction) restOf(d *dueRequest, all bool) []int64 {
	return slices.DeleteFunc(slices.Clone(d.rows), func(number int64) bool {
		locked := tx.locked[number]
		return locked == nil && all || locked != nil && !locked.cut
	})
}

// rowsFor estimates how many rows of once_due have so many effects.
func (s *postgres) rowsFor(effects int) int {
	per := s.effectsPerRow.Load()
	return max(1, min(effects, int(math.Ceil(float64(effects)*16/float64(max(per, 16))))))
}

// learnRows keeps a moving average of the effects per row, in sixteenths.
func (s *postgres) learnRows(rows, effects int) {
	if rows > 0 {
		per := s.effectsPerRow.Load()
		s.effectsPerRow.Store(cmp.Or(per, 16) + (int64(effects*16/rows)-cmp.Or(per, 16))/4)
	}
}
