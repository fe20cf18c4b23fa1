package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// where are the conditions of a query, and their arguments.
type where struct {
	conditions []string
	args       []any
}

// and adds a condition, in which each ? stands for the next value.
func (w *where) and(condition string, values ...any) {
	for _, v := range values {
		w.args = append(w.args, v)
		condition = strings.Replace(condition, "?", fmt.Sprintf("$%d", len(w.args)), 1)
	}
	w.conditions = append(w.conditions, condition)
}

// problemsSQL reads problems by the conditions, in the order of an index.
func problemsSQL(conditions []string, order string, limit int) string {
	where := ""
	if len(conditions) > 0 {
		where = " WHERE " + strings.Join(conditions, " AND ")
	}
	return `SELECT p.kind, p.grp, p.id, p.state, p.at, p.class,
	coalesce((SELECT e.last_error FROM once_effects AS e WHERE e.kind = p.kind AND e.grp = p.grp AND e.id = p.id), '')
FROM once_problems AS p` + where + ` ORDER BY ` + order + fmt.Sprintf(` LIMIT $%d`, limit)
}

// Problems returns effects that failed or ended unknown, in the order of their keys; more says that
// there are more than limit. An empty kind, group or state is any.
func (l *Ledger) Problems(ctx context.Context, kind, group string, state rules.State, limit int) (problems []Problem, more bool, err error) {
	err = l.call(ctx, "problems", func(ctx context.Context) error {
		if err := l.findKinds(ctx); err != nil {
			return err
		}
		var w where
		order := "p.kind, p.grp, p.id"
		if state != "" {
			w.and("p.state = ?", effectCode(state))
			order = "p.state, " + order
		}
		switch {
		case kind != "":
			k, err := l.known(ctx, kind)
			if err != nil {
				return err
			}
			if w.and("p.kind = ?", k.number); group != "" {
				w.and("p.grp = ?", group)
			}
		case group != "":
			return rules.Invalid("problems of the group %q: its kind is missing", group)
		}
		problems, err = selectAll(ctx, l, func(r scanner, p *Problem, _ time.Time) error {
			var key rowKey
			err := r.Scan(&key.kind, &key.group, &key.id, (*stateColumn)(&p.State), (*portableTime)(&p.At), &p.Class, &p.Error)
			p.Key = l.keyOf(key)
			return err
		}, problemsSQL(w.conditions, order, len(w.args)+1), append(w.args, limit+1)...)
		return err
	})
	if len(problems) > limit {
		return problems[:limit], true, err
	}
	return problems, false, err
}

// Backlog has the counts of a kind for metrics.
type Backlog struct {
	Due       int64         // effects that may be called for now, so none of a paused kind; at most BacklogLimit
	OldestDue time.Duration // how long the oldest of them waits; 0: there is none
	Waiting   int64         // accepted and neither settled nor called at the moment
	Calling   int64         // under a lease
	Failed    int64
	Unknown   int64
	Paused    *KindPause // nil: the kind is not paused
}

// BacklogLimit is the highest value of Backlog.Due.
const BacklogLimit = 10_000

//nolint:gochecknoglobals // constant, but not for the compiler
var sqlBacklog = `SELECT ` + eachCount(", ", func(c string) string {
	return fmt.Sprintf(`CAST(coalesce((SELECT %[1]s FROM once_totals WHERE kind = $1 AND grp = '' AND part = ''), 0)
	+ coalesce((SELECT sum(%[1]s) FROM once_deltas WHERE kind = $1), 0) AS bigint)`, c)
}) + `,
	(SELECT count(*) FILTER (WHERE at > $2) FROM once_due_effects WHERE kind = $1 AND calling),
	(SELECT count(*) FROM (SELECT 1 FROM (` + laneList() + `) AS l JOIN once_due_effects AS d ON d.kind = $1 AND d.lane = l.lane AND d.at <= $2 LIMIT ` + fmt.Sprint(BacklogLimit) + `) AS d),
	(SELECT min(l.at) FROM (SELECT (SELECT min(d.at) FROM once_due AS d WHERE d.kind = $1 AND d.lane = l.lane) AS at FROM (` + laneList() + `) AS l) AS l)`

// Backlog counts the effects of a kind in one statement, after one about its pause. Its cost is bounded: the totals of the kind are
// one row and what was not swept yet, calls are counted by an index of their own, due effects up to
// BacklogLimit, and the oldest one is the first entry of an index in each lane.
func (l *Ledger) Backlog(ctx context.Context, kind string) (b Backlog, err error) {
	err = l.briefly(ctx, "backlog", func(ctx context.Context) error {
		k, err := l.known(ctx, kind)
		if err != nil {
			return err
		}
		return l.store.read(ctx, func(q querier, now time.Time) error {
			paused, err := l.readPause(ctx, q, k)
			if err != nil {
				return err
			}
			return q.query(ctx, func(r scanner) error {
				var t Totals
				var oldest time.Time
				b = Backlog{Paused: paused}
				if err := r.Scan(append(t.counts(), &b.Calling, &b.Due, (*portableTime)(&oldest))...); err != nil {
					return err
				}
				b.Waiting, b.Failed, b.Unknown = t.unsettled()-b.Calling, t.Failed, t.Unknown
				switch {
				case paused != nil:
					b.Due = 0
				case !oldest.IsZero():
					b.OldestDue = max(0, now.Sub(oldest))
				}
				return nil
			}, sqlBacklog, k.number, now)
		})
	})
	return b, err
}

// KindBacklog are the effects of a kind.
type KindBacklog struct {
	Kind string `json:"kind"`
	Open int64  `json:"open"` // accepted and not settled
}

// OpenKinds returns the kinds that have effects which are not settled, by name, whichever program has them.
func (l *Ledger) OpenKinds(ctx context.Context) (open []KindBacklog, err error) {
	err = l.call(ctx, "kinds", func(ctx context.Context) error {
		found := map[string]foundKind{}
		if err := l.store.read(ctx, func(q querier, _ time.Time) error { return readKinds(ctx, q, found) }); err != nil {
			return err
		}
		open = nil
		for _, name := range slices.Sorted(maps.Keys(found)) {
			b, err := l.Backlog(ctx, name)
			if err != nil {
				return err
			}
			if n := b.Waiting + b.Calling; n > 0 {
				open = append(open, KindBacklog{name, n})
			}
		}
		return nil
	})
	return open, err
}
