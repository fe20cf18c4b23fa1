package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The limits that an operator has set, the number of losses and the pause ride along, so that all instances learn of a change without a statement of its own.
const sqlDue = `SELECT l.lane, (SELECT min(d.at) FROM once_due AS d WHERE d.kind = $1 AND d.lane = l.lane),
	(SELECT m.per_second FROM once_limits AS m WHERE m.kind = $1), (SELECT m.in_flight FROM once_limits AS m WHERE m.kind = $1), (SELECT count(*) FROM once_lost AS m WHERE m.kind = $1),
	(SELECT count(*) FROM once_paused AS m WHERE m.kind = $1) FROM (%s) AS l`

// laneList is a query of all lanes.
func laneList() (sql string) {
	for lane := range Lanes {
		if lane > 0 {
			sql += " UNION ALL "
		}
		sql += fmt.Sprintf("SELECT %d AS lane", lane)
	}
	return sql
}

// Due says where a kind has work, by one statement that reads one entry of an index per lane. A kind that is paused
// has none. A claim
// of a lane may get less than Due has found, because other transactions hold the rest: wait a moment
// after a claim without a result.
func (l *Ledger) Due(ctx context.Context, kind string) (due Due, err error) {
	k, err := l.registered(kind)
	if err != nil {
		return due, err
	}
	err = l.briefly(ctx, "due", func(ctx context.Context) error {
		return l.store.read(ctx, func(q querier, now time.Time) error {
			due = Due{Next: -1}
			losses, paused := 0, 0
			err := q.query(ctx, func(r scanner) error {
				var lane int
				var at portableTime
				var set steered
				err := r.Scan(&lane, &at, &set.perSecond, &set.inFlight, &losses, &paused)
				due.Limits = set.over(k.Limits)
				if err != nil || time.Time(at).IsZero() || paused > 0 {
					return err
				}
				wait := max(0, time.Time(at).Sub(now))
				if wait == 0 {
					due.Lanes = append(due.Lanes, lane)
				}
				if due.Next < 0 || wait < due.Next {
					due.Next = wait
				}
				return nil
			}, fmt.Sprintf(sqlDue, laneList()), k.number)
			if err != nil || losses == len(k.losses()) {
				return err
			}
			return k.learnLost(ctx, q)
		})
	})
	slices.Sort(due.Lanes)
	return due, err
}

// Claim takes leases of at most limit effects of a lane that are due. Every other call takes the oldest, and the calls between
// them those of the groups that are next, which take turns: docs/decisions/0041-turns-of-groups.md. No other claim gets them while the lease of their kind's policy lasts. What is due and must not be called is settled,
// parked or moved in the same transaction, and is not returned; so Claim may return nothing although
// an effect was due.
//
// After an error that wraps ErrUnavailable some leases may be taken, and they end unused.
func (l *Ledger) Claim(ctx context.Context, kind string, lane, limit int) (claimed []Claimed, err error) {
	k, err := l.registered(kind)
	if err != nil {
		return nil, err
	}
	if lane < 0 || lane >= Lanes || limit < 1 {
		return nil, rules.Invalid("claim of %s: the lane is from 0 to %d and the limit > 0, got %d and %d", kind, Lanes-1, lane, limit)
	}
	claimed, _, err = l.claim(ctx, k, dueRequest{kind: k.number, lane: int64(lane), limit: limit, after: k.turns[lane].next()})
	return claimed, err
}

// ClaimRows is Claim for what waits in rows of AcceptResult, whether its grace has ended or not. rest are the rows that
// may have more than limit effects. The others may be forgotten: what a row has that is not claimed, since another
// transaction has locked it or the kind is paused, is found by Claim when its grace has ended. A row that does not
// exist any more, or of another kind, has nothing. After an error rest has all rows.
func (l *Ledger) ClaimRows(ctx context.Context, kind string, rows []int64, limit int) (claimed []Claimed, rest []int64, err error) {
	k, err := l.registered(kind)
	if err != nil {
		return nil, rows, err
	}
	if len(rows) == 0 || limit < 1 {
		return nil, rows, rules.Invalid("claim of rows of %s: there must be a row and the limit must be > 0, got %d and %d", kind, len(rows), limit)
	}
	if claimed, rest, err = l.claim(ctx, k, dueRequest{kind: k.number, rows: rows, limit: limit}); err != nil {
		rest = rows
	}
	return claimed, rest, err
}

func (l *Ledger) claim(ctx context.Context, k *kind, due dueRequest) (claimed []Claimed, rest []int64, err error) {
	began := time.Now()
	err = l.briefly(ctx, "claim", func(ctx context.Context) error {
		var rows []*storedRow
		err := l.transact(ctx, readRequest{due: &due}, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
			claimed, rows, rest = nil, nil, read.rest
			if due.after != nil {
				k.turns[due.lane].took(read.turn, read.alone)
			}
			if len(read.due) == 0 {
				return nil
			}
			if err := k.readClaim(ctx, tx, read); err != nil {
				return err
			}
			if !read.paused {
				claimed, rows = k.claim(l.newChanges(read), writes)
			}
			return nil
		})
		if err != nil && l.store.fault(err) == faultServer && len(claimed) > 0 {
			claimed, err = l.recoverClaim(ctx, claimed, rows, err)
		}
		return err
	})
	if err != nil {
		claimed = nil
	}
	l.opts.Metrics.batch(opClaim, len(claimed), time.Since(began))
	return claimed, rest, err
}

// readClaim reads the groups and effects of the rows that are due, and whether the kind is paused. The locks of the
// groups and of the kind's pause were taken with the rows, so that nothing is paused until the commit, and the clock comes last.
func (k *kind) readClaim(ctx context.Context, tx transaction, read *readResult) error {
	w := readRequest{pauseOf: k.number, messages: true, lock: lockSkip}
	for _, key := range read.due {
		w.groups = append(w.groups, key.of())
	}
	w.groups = uniqueGroups(w.groups)
	w.keys = sorted.Of(slices.Values(read.due), compareKeys)
	groups := w.groups
	if b, ok := k.fastBegin(time.Now()); ok {
		if err := tx.beginFast(ctx, &w, b, read); err != nil {
			return err
		}
	}
	if len(w.keys) > 0 {
		if err := tx.readMore(ctx, w, read); err != nil {
			return err
		}
	}
	if read.paused {
		return nil
	}
	var missing []groupID
	for _, g := range groups {
		if _, ok := read.groups[g]; !ok {
			missing = append(missing, g)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := tx.addGroups(ctx, missing, read.now); err != nil {
		return err
	}
	if len(w.keys) == 0 {
		return nil
	}
	return tx.readMore(ctx, readRequest{groups: missing}, read)
}

// claim decides the effects that a claim has locked.
func (k *kind) claim(changes *changes, writes *writeSet) (claimed []Claimed, rows []*storedRow) {
	read, policy := changes.read, k.policy()
	for _, key := range read.due {
		row := read.rows[key]
		if row == nil {
			continue // another transaction has it
		}
		lastSent, lastCall := row.lastSent(), row.AttemptStartedAt
		now := read.now
		if !row.began.IsZero() {
			now = row.began
		}
		next, eff, d := policy.Apply(row.Row, beginEvent(now, read.state(key.of())))
		changes.apply(row, next, eff, true)
		switch d.Next {
		case rules.Send:
			row.lastSentAt = time.Time{}
		case rules.Lookup:
			row.lastSentAt = lastSent
		default:
			if d.Reason == "paused" {
				changes.park(row)
			}
			continue
		}
		c := Claimed{Key: Key{k.Name, key.group, key.id}, Lookup: d.Next == rules.Lookup, Epoch: next.Epoch, Number: next.Attempts,
			Payload: row.payload, Request: row.requestToSend(), LastSent: lastSent}
		if !lastCall.IsZero() {
			c.SinceLastCall = now.Sub(lastCall)
		}
		if row.headers != "" {
			_ = json.Unmarshal([]byte(row.headers), &c.Headers) // Accept encoded it
		}
		claimed, rows = append(claimed, c), append(rows, row)
	}
	changes.writeTo(writes)
	return claimed, rows
}

// lastSent returns the start of the last send, and zero before the first one.
func (r *storedRow) lastSent() time.Time {
	if !r.lastSentAt.IsZero() {
		return r.lastSentAt
	}
	return r.AttemptStartedAt
}

// recoverClaim finds out which leases a commit without an answer has taken. An unused lease would end
// as a call that perhaps did something. A server that ends connections may refuse the next ones as well,
// such as while its password is rotated, so each error is tried again until ctx ends.
func (l *Ledger) recoverClaim(ctx context.Context, claimed []Claimed, rows []*storedRow, lost error) ([]Claimed, error) {
	w := readRequest{keys: sorted.Of(slices.Values(valuesOf(rows, func(r *storedRow) rowKey { return r.rowKey })), compareKeys)}
	for ctx.Err() == nil {
		var ours []Claimed
		err := l.transact(ctx, w, func(_ context.Context, _ transaction, read *readResult, _ *writeSet) error {
			ours = nil
			for i, row := range rows {
				now := read.rows[row.rowKey]
				if now != nil && now.State == rules.Sending && now.Epoch == row.Epoch && now.AttemptBy == row.AttemptBy && now.AttemptStartedAt.Equal(row.AttemptStartedAt) {
					ours = append(ours, claimed[i])
				}
			}
			return nil
		})
		if err == nil {
			return ours, nil
		}
		loop.Sleep(ctx, 100*time.Millisecond)
	}
	return nil, lost
}
