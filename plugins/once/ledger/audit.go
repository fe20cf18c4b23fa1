package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
)

const sqlRecentAudit = `SELECT number, at, who, why, action, detail, db_user, kind, grp, id FROM once_audit
WHERE number < $1 ORDER BY number DESC LIMIT $2`

// RecentAudit returns what operators did to effects, groups and limits of all kinds, the newest first.
func (l *Ledger) RecentAudit(ctx context.Context, f operate.AuditFilter, limit int) (page operate.AuditPage, err error) {
	err = l.call(ctx, "audit", func(ctx context.Context) error {
		if err := l.findKinds(ctx); err != nil {
			return err
		}
		page, err = operate.FilterAudit(ctx, f, limit, l.recentAudit)
		return err
	})
	return page, err
}

func (l *Ledger) recentAudit(ctx context.Context, f operate.AuditFilter, n int) ([]operate.Change, error) {
	from, err := f.RowBefore()
	if err != nil {
		return nil, err
	}
	return selectAll(ctx, l, func(r scanner, c *operate.Change, _ time.Time) error {
		var number int64
		var key rowKey
		var role string
		err := r.Scan(&number, (*portableTime)(&c.At), &c.Who, &c.Why, &c.Action, &c.Detail, &role, &key.kind, &key.group, &key.id)
		subject := l.nameOf(key.kind)
		for _, part := range []string{key.group, key.id} {
			if part != "" {
				subject += "/" + part
			}
		}
		c.ID, c.Subject, c.Outcome = strconv.FormatInt(number, 10), subject, "done"
		if role != "" {
			c.Detail = strings.TrimSpace(c.Detail + " (database role " + role + ")")
		}
		return err
	}, sqlRecentAudit, from, n)
}

// RecordReveal records that an operator sees what is masked of an effect. An effect that is not in the ledger
// returns ErrNotFound.
func (l *Ledger) RecordReveal(ctx context.Context, k Key, by By) error {
	return l.record(ctx, k, Audit{By: by, Action: "reveal", Detail: "payloads and headers"}, func(found bool, _ []Audit) error {
		if !found {
			return notFound(k)
		}
		return nil
	})
}

// RecordProbe records that an operator sends a request to the far side, to find out what it does. The key of an effect
// in the ledger returns ErrConflict, because that effect is not the operator's, and so does one that was probed before,
// because without idempotency keys its effect would happen once more.
func (l *Ledger) RecordProbe(ctx context.Context, k Key, by By) error {
	return l.record(ctx, k, Audit{By: by, Action: "probe", Detail: "sent to the far side"}, func(found bool, before []Audit) error {
		if found || slices.ContainsFunc(before, func(a Audit) bool { return a.Action == "probe" }) {
			return fmt.Errorf("once: ledger: effect %s: %w", k.text(), ErrConflict)
		}
		return nil
	})
}

// RecordSend records that an operator publishes a record of an effect to a topic. The ledger need not have the effect.
func (l *Ledger) RecordSend(ctx context.Context, k Key, topic string, by By) error {
	return l.record(ctx, k, Audit{By: by, Action: "send", Detail: "to " + topic}, func(bool, []Audit) error { return nil })
}

// RecordEnqueue records that an operator asks for many effects of a kind, before the first one is accepted.
func (l *Ledger) RecordEnqueue(ctx context.Context, kind, detail string, by By) error {
	if err := by.check("enqueue", true); err != nil {
		return err
	}
	return l.call(ctx, "enqueue", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			return writeAudit(ctx, q, now, rowKey{kind: k.number}, Audit{By: by, Action: "enqueue", Detail: detail})
		})
	})
}

// record writes an action on an effect, if allowed agrees with whether the ledger has the effect, and with what was
// recorded before.
func (l *Ledger) record(ctx context.Context, k Key, a Audit, allowed func(found bool, before []Audit) error) error {
	return l.call(ctx, a.Action, func(ctx context.Context) error {
		if err := a.By.check(a.Action, true); err != nil {
			return err
		}
		kind, err := l.known(ctx, k.Kind)
		if err != nil {
			return err
		}
		return l.update(ctx, groupLock{}, func(q querier, now time.Time) error {
			found := false
			if err := q.query(ctx, func(scanner) error { found = true; return nil },
				`SELECT 1 FROM once_effects WHERE kind = $1 AND grp = $2 AND id = $3`, kind.number, k.Group, k.ID); err != nil {
				return err
			}
			key := rowKey{kind.number, k.Group, k.ID}
			before, err := readAudit(ctx, q, key)
			if err == nil {
				err = allowed(found, before)
			}
			if err != nil {
				return err
			}
			return writeAudit(ctx, q, now, key, a)
		})
	})
}
