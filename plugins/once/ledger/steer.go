package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

const (
	sqlGroupState = `SELECT state FROM once_groups WHERE kind = $1 AND grp = $2`

	sqlSetGroupState = `INSERT INTO once_groups (kind, grp, state, created_at, changed_at) VALUES ($1, $2, $3, $4, $4)
ON CONFLICT (kind, grp) DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at`

	sqlAnyEffect = `SELECT 1 FROM once_effects WHERE kind = $1 AND grp = $2 LIMIT 1`

	// sqlFinished finds a group of which nothing is left: what failed or is unknown can be replayed.
	sqlFinished = `SELECT 1 FROM once_groups AS g JOIN (SELECT sum(accepted) AS accepted, sum(done + cancelled) AS ended FROM (
	SELECT accepted, done, cancelled FROM once_totals WHERE kind = $1 AND grp = $2
	UNION ALL SELECT accepted, done, cancelled FROM once_deltas WHERE kind = $1 AND grp = $2) AS t) AS t ON t.accepted >= g.expected AND t.ended = t.accepted
WHERE g.kind = $1 AND g.grp = $2`
)

// Steer is an option of Pause and Cancel.
type Steer int

// Future also pauses or cancels a group before its first effect, or one that is finished, for effects that are still to come. It
// needs a reason.
const Future Steer = 1

func (b *By) check(what string, whyToo bool) error {
	b.Who, b.Why = clean(b.Who), clean(b.Why)
	switch {
	case b.Who == "":
		return rules.Invalid("%s: the audit needs who", what)
	case b.Why == "" && whyToo:
		return rules.Invalid("%s: the audit needs why", what)
	}
	return nil
}

// setGroupState changes the state and writes the audit in one transaction. CANCELLED is final. Without Future, a group
// without an effect returns ErrNotFound, and one that is finished ErrFinished, unless it is resumed.
func (l *Ledger) setGroupState(ctx context.Context, what string, g Group, to rules.GroupState, by By, how []Steer) (groupID, error) {
	future := slices.Contains(how, Future)
	if err := by.check(what+" of "+g.text(), to == rules.GroupCancelled || future); err != nil {
		return groupID{}, err
	}
	if err := g.check(); err != nil {
		return groupID{}, err
	}
	k, err := l.known(ctx, g.Kind)
	if err != nil {
		return groupID{}, err
	}
	id := groupID{k.number, g.Name}
	return id, l.update(ctx, groupLock{exclusive: &id}, func(q querier, now time.Time) error {
		from, known, finished := rules.GroupRunning, future, false
		if err := q.query(ctx, func(r scanner) error { known = true; return r.Scan((*groupStateColumn)(&from)) }, sqlGroupState, id.kind, id.name); err != nil {
			return err
		}
		if !known {
			if err := q.query(ctx, func(scanner) error { known = true; return nil }, sqlAnyEffect, id.kind, id.name); err != nil {
				return err
			}
		}
		if from != to && to != rules.GroupRunning && !future {
			if err := q.query(ctx, func(scanner) error { finished = true; return nil }, sqlFinished, id.kind, id.name); err != nil {
				return err
			}
		}
		switch {
		case !known:
			return fmt.Errorf("once: ledger: group %s: %w", g.text(), ErrNotFound)
		case from == rules.GroupCancelled && to != rules.GroupCancelled:
			return fmt.Errorf("once: ledger: %s of %s: %w", what, g.text(), ErrCancelled)
		case finished:
			return fmt.Errorf("once: ledger: %s of %s: %w", what, g.text(), ErrFinished)
		case from != to:
			if _, err := q.exec(ctx, sqlSetGroupState, id.kind, id.name, groupCode(to), now); err != nil {
				return err
			}
		}
		detail := fmt.Sprintf("%s to %s", from, to)
		if future {
			detail += ", also for effects to come"
		}
		return writeAudit(ctx, q, now, rowKey{kind: id.kind, group: id.name}, Audit{By: by, Action: what, Detail: detail})
	})
}

const (
	sqlWriteAudit = `INSERT INTO once_audit (at, who, why, action, kind, grp, id, detail) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`

	sqlAudit = `SELECT at, who, why, action, detail, db_user FROM once_audit WHERE kind = $1 AND grp = $2 AND id = $3 ORDER BY kind, grp, id, number`
)

// GroupAudit returns what operators did to a group, in order.
func (l *Ledger) GroupAudit(ctx context.Context, g Group) (audit []Audit, err error) {
	err = l.call(ctx, "audit", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, _ time.Time) error {
			audit, err = readAudit(ctx, q, rowKey{kind: k.number, group: g.Name})
			return err
		})
	})
	return audit, err
}

// writeAudit writes an action on an effect, or on a group with an empty id.
func writeAudit(ctx context.Context, q querier, now time.Time, k rowKey, a Audit) error {
	_, err := q.exec(ctx, sqlWriteAudit, now, a.By.Who, a.By.Why, a.Action, k.kind, k.group, k.id, a.Detail)
	return err
}

func readAudit(ctx context.Context, q querier, k rowKey) (lines []Audit, err error) {
	err = q.query(ctx, func(r scanner) error {
		var a Audit
		err := r.Scan((*portableTime)(&a.At), &a.By.Who, &a.By.Why, &a.Action, &a.Detail, &a.Database)
		lines = append(lines, a)
		return err
	}, sqlAudit, k.kind, k.group, k.id)
	return lines, err
}

// Pause stops a group: after its return no call of it starts. Running calls end normally. A cancelled
// group returns ErrCancelled. Without Future, one without an effect or a size returns ErrNotFound, and one that is finished ErrFinished.
func (l *Ledger) Pause(ctx context.Context, g Group, by By, how ...Steer) error {
	return l.call(ctx, "pause", func(ctx context.Context) error {
		_, err := l.setGroupState(ctx, "pause", g, rules.GroupPaused, by, how)
		return err
	})
}

// Resume runs a paused group again. The next Sweep has its effects claimed. It has the errors of Pause, except for ErrFinished.
func (l *Ledger) Resume(ctx context.Context, g Group, by By) error {
	return l.call(ctx, "resume", func(ctx context.Context) error {
		_, err := l.setGroupState(ctx, "resume", g, rules.GroupRunning, by, nil)
		return err
	})
}

// Cancellation is the result of Cancel.
type Cancellation struct {
	Cancelled int64 // effects that this call has cancelled
	Calling   int64 // effects that are being called; their ends are stored
	Ambiguous int64 // effects that may have happened, such as those of ended leases: they are looked up, or end UNKNOWN
}

const (
	// cancelChunk is the largest number of effects per transaction of Cancel, and of rows that it reads at once.
	cancelChunk = 500

	// sqlUnsettledStates counts what is being called (2) and what may have happened (4): a lease that has ended is no call.
	sqlUnsettledStates = `SELECT CASE WHEN e.state = 2 AND d.at <= $3 THEN 4 ELSE e.state END, count(*) FROM once_due_effects AS d
JOIN once_effects AS e ON e.kind = d.kind AND e.grp = d.grp AND e.id = d.id WHERE d.kind = $1 AND d.grp = $2 GROUP BY 1`
)

// Cancel stops a group for good. After it has taken effect, nothing is sent. Effects that certainly did
// not happen become CANCELLED; the others are looked up, if their kind has lookups. It may be repeated,
// and then cancels what is left. When ctx ends early, the group is cancelled all the same, and the rest
// follows when it is due. It has the errors of Pause, except for ErrCancelled.
func (l *Ledger) Cancel(ctx context.Context, g Group, by By, how ...Steer) (c Cancellation, err error) {
	err = l.call(ctx, "cancel", func(ctx context.Context) error {
		id, err := l.setGroupState(ctx, "cancel", g, rules.GroupCancelled, by, how)
		if err != nil {
			return err
		}
		if err := l.findKinds(ctx); err != nil { // and what they have lost
			return err
		}
		kind, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		for last := ""; ; {
			keys, err := selectAll(ctx, l, func(r scanner, k *rowKey, _ time.Time) error {
				*k = rowKey{kind: id.kind, group: id.name}
				return r.Scan(&last, &k.id)
			}, l.store.unsettled(), id.kind, id.name, last, cancelChunk)
			if err != nil {
				return err
			}
			if len(keys) == 0 {
				break
			}
			for chunk := range slices.Chunk(keys, cancelChunk) {
				sorted.By(chunk, compareKeys)
				n, err := l.cancelChunk(ctx, kind, chunk)
				if err != nil {
					return err
				}
				c.Cancelled += n
			}
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			return q.query(ctx, func(r scanner) error {
				var state rules.State
				var n int64
				err := r.Scan((*stateColumn)(&state), &n)
				switch state {
				case rules.Sending:
					c.Calling = n
				case rules.Ambiguous:
					c.Ambiguous = n
				}
				return err
			}, sqlUnsettledStates, id.kind, id.name, now)
		})
	})
	return c, err
}

// cancelChunk cancels the effects with the sorted keys that certainly did not happen.
func (l *Ledger) cancelChunk(ctx context.Context, of *kind, keys []rowKey) (cancelled int64, err error) {
	err = l.transactPastLocks(ctx, readRequest{keys: keys, lock: lockWait}, func(_ context.Context, _ transaction, read *readResult, writes *writeSet) error {
		cancelled = 0
		changes := l.newChanges(read)
		for _, k := range keys {
			row := read.rows[k]
			if row == nil {
				continue
			}
			// A cancellation is the same with every policy, except for what the ledger has lost.
			next, eff, _ := rules.Policy{Lost: of.losses()}.Apply(row.Row, rules.Event{Kind: rules.EventCancel, Now: read.now})
			changes.apply(row, next, eff, false)
			if eff.Settled {
				cancelled++
			}
		}
		changes.writeTo(writes)
		return nil
	})
	return cancelled, err
}
