package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// oldestOf is the number of effects per group that reports read to find the oldest one; in PostgreSQL, of rows of once_due.
const oldestOf = 10_000

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	groupCounts = eachCount(", ", func(c string) string {
		return fmt.Sprintf(`CAST(coalesce((SELECT sum(%[1]s) FROM once_totals AS t WHERE t.kind = g.kind AND t.grp = g.grp), 0)
	+ coalesce((SELECT sum(%[1]s) FROM once_deltas AS t WHERE t.kind = g.kind AND t.grp = g.grp), 0) AS bigint)`, c)
	})

	// sqlStatus reads the status of the groups of a subquery g, in one snapshot. It gets the parameter with the time: a lease
	// that has ended, such as that of a killed worker whose group is paused, is no call.
	sqlStatus = `SELECT g.kind, g.grp, g.state, g.created_at, g.changed_at, coalesce(g.expected, 0), ` + groupCounts + `,
	(SELECT count(*) FILTER (WHERE d.at > %s) FROM once_due_effects AS d WHERE d.kind = g.kind AND d.grp = g.grp AND d.calling),
	(SELECT min(d.at) FROM (SELECT d.at FROM once_due AS d WHERE d.kind = g.kind AND d.grp = g.grp ORDER BY d.kind, d.grp LIMIT ` + fmt.Sprint(oldestOf) + `) AS d)
FROM (%s) AS g`

	sqlGroup = fmt.Sprintf(sqlStatus, "$3", `SELECT kind, grp, state, created_at, changed_at, expected FROM once_groups WHERE kind = $1 AND grp = $2
	UNION ALL SELECT kind, grp, 1, accepted_at, accepted_at, CAST(NULL AS bigint) FROM (SELECT kind, grp, accepted_at FROM once_effects WHERE kind = $1 AND grp = $2 ORDER BY kind, grp, id LIMIT 1) AS e
		WHERE NOT EXISTS (SELECT 1 FROM once_groups WHERE kind = $1 AND grp = $2)`)

	sqlParts = `SELECT part, ` + sumCounts + ` FROM (SELECT part, ` + strings.Join(countColumns(), ", ") + ` FROM once_totals WHERE kind = $1 AND grp = $2
	UNION ALL SELECT part, ` + strings.Join(countColumns(), ", ") + ` FROM once_deltas WHERE kind = $1 AND grp = $2) AS t GROUP BY part ORDER BY part`
)

// endOfTime is later than any group was created.
//
//nolint:gochecknoglobals // constant, but not for the compiler
var endOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

func (t *Totals) counts() []any {
	return []any{&t.Accepted, &t.Done, &t.Failed, &t.Unknown, &t.Cancelled}
}

func (t *Totals) unsettled() int64 { return t.Accepted - t.Done - t.Failed - t.Unknown - t.Cancelled }

func (l *Ledger) scanStatus(r scanner, s *Status, now time.Time) error {
	var kind int64
	var changed, oldest time.Time
	err := r.Scan(append(append([]any{&kind, &s.Name, (*groupStateColumn)(&s.State), (*portableTime)(&s.CreatedAt), (*portableTime)(&changed), &s.Expected}, s.counts()...), &s.Calling, (*portableTime)(&oldest))...)
	s.Kind, s.Waiting = l.nameOf(kind), s.unsettled()-s.Calling
	if s.State == rules.GroupRunning && changed.After(s.CreatedAt) {
		s.ResumedFor = max(0, now.Sub(changed))
	}
	if !oldest.IsZero() {
		s.OldestDue = max(0, now.Sub(oldest))
	}
	return err
}

const (
	sqlCreated = `SELECT created_at FROM once_groups WHERE kind = $1 AND grp = $2`

	// sqlNewest reads the newest groups of the kind %[1]d before a place. A kind before that of the place has %[2]s <=, which decides
	// between groups of one name that were created at the same time.
	sqlNewest = `SELECT * FROM (SELECT kind, grp, state, created_at, changed_at, expected FROM once_groups WHERE kind = %[1]d AND (created_at, grp) %[2]s ($2, $3)
	ORDER BY created_at DESC, grp DESC LIMIT $1) AS of_%[1]d`
)

// groupsSQL reads the newest groups of some kinds, each by its part of an index, before a place with the kind after.
func groupsSQL(kinds []int64, after int64) string {
	each := make([]string, len(kinds))
	for i, k := range kinds {
		before := "<"
		if k < after {
			before = "<="
		}
		each[i] = fmt.Sprintf(sqlNewest, k, before)
	}
	return fmt.Sprintf(sqlStatus, "$4", `SELECT * FROM (`+strings.Join(each, " UNION ALL ")+`) AS n ORDER BY created_at DESC, grp DESC, kind DESC LIMIT $1`) +
		` ORDER BY g.created_at DESC, g.grp DESC, g.kind DESC`
}

// Groups returns the groups of a kind, or of all kinds if it is empty, the newest first, that follow after;
// more says that there are more than limit. The zero value of after is before all groups, and one that is not there returns ErrNotFound.
// The oldest due effect is sought among 10,000 of each group.
// A group appears when its first effect was claimed, by the next Sweep, or by Expect.
func (l *Ledger) Groups(ctx context.Context, kind string, after Group, limit int) (groups []Status, more bool, err error) {
	err = l.call(ctx, "groups", func(ctx context.Context) error {
		if err := l.findKinds(ctx); err != nil {
			return err
		}
		kinds, place, created := l.kindNumbers(), int64(0), endOfTime
		if kind != "" {
			k, err := l.known(ctx, kind)
			if err != nil {
				return err
			}
			kinds = []int64{k.number}
		}
		if after != (Group{}) {
			k, err := l.known(ctx, after.Kind)
			if err != nil {
				return err
			}
			place = k.number
			found, err := selectAll(ctx, l, func(r scanner, at *time.Time, _ time.Time) error { return r.Scan((*portableTime)(at)) }, sqlCreated, place, after.Name)
			if err != nil {
				return err
			}
			if len(found) == 0 {
				return fmt.Errorf("once: ledger: group %s: %w", after.text(), ErrNotFound)
			}
			created = found[0]
		}
		if len(kinds) == 0 {
			return nil
		}
		groups, err = selectAll(ctx, l, l.scanStatus, groupsSQL(kinds, place), limit+1, created, after.Name, atNow{})
		return err
	})
	if len(groups) > limit {
		return groups[:limit], true, err
	}
	return groups, false, err
}

// Status returns one group. A group without an effect returns ErrNotFound, unless Expect has named it.
func (l *Ledger) Status(ctx context.Context, g Group) (s Status, err error) {
	err = l.call(ctx, "status", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		found, err := selectAll(ctx, l, l.scanStatus, sqlGroup, k.number, g.Name, atNow{})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("once: ledger: group %s: %w", g.text(), ErrNotFound)
		}
		s = found[0]
		return nil
	})
	return s, err
}

// Parts returns the totals of the parts of a group, by name. An effect without a part is in the part "".
func (l *Ledger) Parts(ctx context.Context, g Group) (parts []Totals, err error) {
	err = l.call(ctx, "parts", func(ctx context.Context) error {
		k, err := l.known(ctx, g.Kind)
		if err != nil {
			return err
		}
		parts, err = selectAll(ctx, l, func(r scanner, t *Totals, _ time.Time) error {
			return r.Scan(append([]any{&t.Part}, t.counts()...)...)
		}, sqlParts, k.number, g.Name)
		return err
	})
	return parts, err
}

//nolint:gochecknoglobals // constant, but not for the compiler
var (
	sqlEffect = `SELECT ` + reads(effectColumns, "") + ` FROM once_effects WHERE kind = $1 AND grp = $2 AND id = $3`

	sqlAttempts = `SELECT epoch, late, number, call, instance, started_at, ended_at, outcome, coalesce(class, ''), coalesce(answer, ''), coalesce(status, 0), coalesce(receipt, '')
FROM once_attempts WHERE kind = $1 AND grp = $2 AND id = $3 ORDER BY kind, grp, id, epoch, late`
)

// Explain returns everything that is known about an effect. An effect without a row returns
// ErrNotFound. A kind that is not registered here has no next call.
func (l *Ledger) Explain(ctx context.Context, k Key) (x Explanation, err error) {
	err = l.call(ctx, "explain", func(ctx context.Context) error {
		kind, err := l.known(ctx, k.Kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			x = Explanation{Key: k, Group: rules.GroupRunning, Registered: kind.registered, Repeat: kind.Policy.Repeat, NextCall: rules.Ack}
			key := rowKey{kind.number, k.Group, k.ID}
			var row *storedRow
			if err := q.query(ctx, func(r scanner) (err error) { row, err = scanRow(r, effectColumns); return err }, sqlEffect, key.kind, key.group, key.id); err != nil {
				return err
			}
			if row == nil {
				return notFound(k)
			}
			if err := q.query(ctx, func(r scanner) error { return r.Scan((*groupStateColumn)(&x.Group)) }, sqlGroupState, key.kind, key.group); err != nil {
				return err
			}
			if x.Calls, err = readAttempts(ctx, q, key, row); err != nil {
				return err
			}
			if x.Audit, err = readAudit(ctx, q, key); err != nil {
				return err
			}
			if x.GroupAudit, err = readAudit(ctx, q, rowKey{kind: key.kind, group: key.group}); err != nil {
				return err
			}
			x.Part, x.Origin, x.Payload, x.Request, x.NotBefore = row.part, row.origin, row.payload, row.requestToSend(), row.notBefore
			x.Row = row.Row
			x.Row.Queue = ""
			if row.headers != "" {
				_ = json.Unmarshal([]byte(row.headers), &x.Headers) // Accept encoded it
			}
			if lost, ok := kind.policy().MayBeLost(row.Row); ok {
				x.Lost = &lost
			}
			if kind.registered && !row.State.Settled() {
				next, at := kind.policy().NextBegin(row.Row, x.Group, now)
				var due time.Time // later than what the rules say of one that waits for its grace
				if err := q.query(ctx, func(r scanner) error { return r.Scan((*portableTime)(&due)) }, sqlDueAt, key.kind, key.group, key.id); err != nil {
					return err
				}
				if due.After(at) {
					at = due
				}
				x.NextCall, x.NextCallIn = next, max(0, at.Sub(now))
			}
			return nil
		})
	})
	return x, err
}

// readAttempts returns the calls by epoch. The first one, if it ended done, and an open one are in the
// row of the effect.
func readAttempts(ctx context.Context, q querier, k rowKey, row *storedRow) (calls []rules.Attempt, err error) {
	if row.State == rules.Success && row.Epoch == 1 {
		calls = append(calls, rules.Attempt{Epoch: 1, Number: row.Attempts, Kind: rules.CallSend, Instance: row.AttemptBy,
			StartedAt: row.AttemptStartedAt, EndedAt: row.SettledAt, Outcome: rules.Done, Status: row.status})
	}
	err = q.query(ctx, func(r scanner) error {
		var a rules.Attempt
		err := r.Scan(&a.Epoch, &a.Late, &a.Number, (*string)(&a.Kind), &a.Instance, (*portableTime)(&a.StartedAt), (*portableTime)(&a.EndedAt),
			(*string)(&a.Outcome), &a.Class, &a.Answer, &a.Status, &a.Receipt)
		calls = append(calls, a)
		return err
	}, sqlAttempts, k.kind, k.group, k.id)
	sorted.By(calls, func(a, b rules.Attempt) int { return cmp.Compare(a.Epoch, b.Epoch) })
	if open, ok := row.OpenCall(); ok {
		calls = append(calls, open)
	}
	return calls, err
}
