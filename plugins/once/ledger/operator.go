package ledger

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Replay tries a FAILED or UNKNOWN effect again: all attempts are available again, with the same
// request and key. What may have happened is sent again only if its kind's Repeat allows it. A late
// answer that says that it was done makes it possible again.
//
// A state that does not allow it returns a *RefusedError, an effect without a row ErrNotFound, and a
// kind that is not registered here ErrInvalid.
func (l *Ledger) Replay(ctx context.Context, k Key, by By) error {
	if err := by.check("replay of "+k.text(), true); err != nil {
		return err
	}
	return l.operate(ctx, "replay", k, decideReplay(k, by))
}

// WouldReplay returns what Replay would change, such as "FAILED to PENDING", and changes nothing. It has the errors of Replay.
func (l *Ledger) WouldReplay(ctx context.Context, k Key) (change string, err error) {
	return l.judge(ctx, k, decideReplay(k, By{}))
}

// decision is what an action of an operator does to an effect. late is the receipt of a late answer that says that the
// effect was done; nil: there is none.
type decision func(row *storedRow, late *string, ev rules.Event, p rules.Policy) (rules.Row, rules.Writes, Audit, error)

func decideReplay(k Key, by By) decision {
	return func(row *storedRow, late *string, ev rules.Event, p rules.Policy) (rules.Row, rules.Writes, Audit, error) {
		return replay(k, by, row, late, &ev, &p)
	}
}

// replay is the decision of decideReplay, of which the binary has one copy.
func replay(k Key, by By, row *storedRow, late *string, ev *rules.Event, p *rules.Policy) (rules.Row, rules.Writes, Audit, error) {
	before := row.Row
	if late != nil && !before.MaybeDone {
		// Denied by an operator, or answered later. Assume the oldest possible use of the key.
		before.MaybeDone, before.FirstSentAt = true, before.AcceptedAt
	}
	ev.Kind = rules.EventReplay
	next, eff, d := p.Apply(before, *ev)
	if d.Refused != 0 {
		return next, eff, Audit{}, &RefusedError{Key: k, Action: "replay", Refusal: d.Refused}
	}
	return next, eff, Audit{By: by, Detail: string(row.State) + " to " + string(next.State)}, nil
}

// Resolve stores what an operator has found out about an UNKNOWN effect: SUCCESS with its receipt, or
// FAILED. With Force it also ends an AMBIGUOUS effect that is only looked up. It has the errors of
// Replay. The statement that it was not done is refused without Force, if a late answer says that it
// was done.
func (l *Ledger) Resolve(ctx context.Context, k Key, r rules.Resolution) error {
	r.Receipt, r.Who, r.Why, r.Evidence = portable.Text(r.Receipt, maxReceiptBytes), clean(r.Who), clean(r.Why), clean(r.Evidence)
	if err := r.Validate(); err != nil {
		return err
	}
	return l.operate(ctx, "resolve", k, decideResolution(k, r))
}

// WouldResolve returns what Resolve would change, such as "UNKNOWN to FAILED: not done", and changes nothing. It has
// the errors of Resolve.
func (l *Ledger) WouldResolve(ctx context.Context, k Key, r rules.Resolution) (change string, err error) {
	r.Receipt = portable.Text(r.Receipt, maxReceiptBytes)
	return l.judge(ctx, k, decideResolution(k, r))
}

func decideResolution(k Key, r rules.Resolution) decision {
	return func(row *storedRow, late *string, ev rules.Event, p rules.Policy) (rules.Row, rules.Writes, Audit, error) {
		if late != nil && !r.Done && !r.Force {
			return row.Row, rules.Writes{}, Audit{}, &RefusedError{Key: k, Action: "resolve", Late: true, Receipt: *late}
		}
		ev.Kind, ev.Resolution = rules.EventResolve, r
		next, eff, d := p.Apply(row.Row, ev)
		if d.Refused != 0 {
			return next, eff, Audit{}, &RefusedError{Key: k, Action: "resolve", Refusal: d.Refused}
		}
		detail := string(row.State) + " to FAILED: not done"
		if r.Done {
			detail = string(row.State) + " to SUCCESS, receipt " + r.Receipt
		}
		if r.Evidence != "" {
			detail += "; the far side says: " + r.Evidence
		}
		return next, eff, Audit{By: By{r.Who, r.Why}, Detail: detail}, nil
	}
}

const sqlLateDone = `SELECT coalesce(receipt, '') FROM once_attempts
WHERE kind = $1 AND grp = $2 AND id = $3 AND late AND outcome = 'done' ORDER BY kind, grp, id, epoch DESC LIMIT 1`

func readLate(ctx context.Context, q querier, key rowKey) (late *string, err error) {
	err = q.query(ctx, func(r scanner) error { late = new(string); return r.Scan(late) }, sqlLateDone, key.kind, key.group, key.id)
	return late, err
}

// judge returns what operate would change now, and changes nothing.
func (l *Ledger) judge(ctx context.Context, k Key, decide decision) (change string, err error) {
	if err := k.check(); err != nil {
		return "", err
	}
	err = l.call(ctx, "judge", func(ctx context.Context) error {
		if _, err := l.known(ctx, k.Kind); err != nil {
			return err
		}
		kind, err := l.registered(k.Kind)
		if err != nil {
			return err
		}
		key := rowKey{kind.number, k.Group, k.ID}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			var row *storedRow
			if err := q.query(ctx, func(r scanner) (err error) { row, err = scanRow(r, effectColumns); return err }, sqlEffect, key.kind, key.group, key.id); err != nil {
				return err
			}
			if row == nil {
				return notFound(k)
			}
			group := rules.GroupRunning
			if err := q.query(ctx, func(r scanner) error { return r.Scan((*groupStateColumn)(&group)) }, sqlGroupState, key.kind, key.group); err != nil {
				return err
			}
			late, err := readLate(ctx, q, key)
			if err != nil {
				return err
			}
			_, _, audit, err := decide(row, late, rules.Event{Now: now, Group: group}, kind.policy())
			change = audit.Detail
			return err
		})
	})
	return change, err
}

// operate applies an operator's action to one effect, with its audit.
func (l *Ledger) operate(ctx context.Context, what string, k Key, decide decision) error {
	if err := k.check(); err != nil {
		return err
	}
	return l.call(ctx, what, func(ctx context.Context) error {
		if _, err := l.known(ctx, k.Kind); err != nil {
			return err
		}
		kind, err := l.registered(k.Kind)
		if err != nil {
			return err
		}
		key := rowKey{kind.number, k.Group, k.ID}
		return l.transactPastLocks(ctx, readRequest{keys: []rowKey{key}, lock: lockWait}, func(ctx context.Context, tx transaction, read *readResult, writes *writeSet) error {
			row := read.rows[key]
			if row == nil {
				return notFound(k)
			}
			// The effect first and then its group: see the package comment.
			if err := tx.readMore(ctx, readRequest{groups: []groupID{key.of()}, share: true}, read); err != nil {
				return err
			}
			late, err := readLate(ctx, tx.querier(), key)
			if err != nil {
				return err
			}
			changes := l.newChanges(read)
			changes.of(row)
			next, eff, audit, err := decide(row, late, rules.Event{Now: read.now, Group: read.state(key.of())}, kind.policy())
			if err != nil {
				return err
			}
			changes.apply(row, next, eff, false)
			changes.writeTo(writes)
			audit.Action = what
			return writeAudit(ctx, tx.querier(), read.now, key, audit)
		})
	})
}
