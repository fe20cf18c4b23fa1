package ledger

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Selection is which effects an operator replays at once. CountSelected fills Until.
type Selection struct {
	Group             // of all groups of the kind if its name is empty
	State rules.State // Failed or Unknown
	Class string      // as in Problem; empty: any
	// Until leaves out what ends later, so an effect that fails again while others are replayed is not replayed again.
	Until time.Time
}

// Selected is an effect of a selection, and whether Replay would refuse it when it was read.
type Selected struct {
	Problem
	Refused error // a *RefusedError, or nil
}

const (
	// selectChunk is the number of effects that Select reads at once.
	selectChunk = 500

	sqlCountSelected = `SELECT count(*) FROM once_problems AS p WHERE `
)

// selectedSQL reads problems by the conditions, with all that the rules look at. The effects are joined to a page of them.
func selectedSQL(conditions []string, limit int) string {
	return `SELECT ` + reads(rowColumns, "e.") + `, p.class, p.at, g.state,
	EXISTS (SELECT 1 FROM once_attempts AS a WHERE a.kind = p.kind AND a.grp = p.grp AND a.id = p.id AND a.late AND a.outcome = 'done')
FROM (SELECT p.kind, p.grp, p.id, p.class, p.at FROM once_problems AS p WHERE ` + strings.Join(conditions, " AND ") + fmt.Sprintf(`
	ORDER BY p.state, p.kind, p.grp, p.id LIMIT $%d) AS p
JOIN once_effects AS e ON e.kind = p.kind AND e.grp = p.grp AND e.id = p.id
LEFT JOIN once_groups AS g ON g.kind = p.kind AND g.grp = p.grp ORDER BY p.grp, p.id`, limit)
}

// where returns the conditions of the selection for effects after one of a group. They are the two ends of a range of the index
// once_problems_state, which PostgreSQL would leave for the primary key if they were equalities.
func (s Selection) where(k *kind, after Key) (w where) {
	state := effectCode(s.State)
	w.and("(p.state, p.kind, p.grp, p.id) > (?, ?, ?, ?)", state, k.number, cmp.Or(after.Group, s.Name), after.ID)
	if s.Name == "" {
		w.and("(p.state, p.kind) <= (?, ?)", state, k.number)
	} else {
		w.and("(p.state, p.kind, p.grp) <= (?, ?, ?)", state, k.number, s.Name)
	}
	if s.Class != "" {
		w.and("p.class = ?", s.Class)
	}
	return w
}

// CountSelected counts the effects of a selection, and returns it as it is at that time. A kind that is not registered
// here is ErrInvalid, and so is another state than FAILED and UNKNOWN.
func (l *Ledger) CountSelected(ctx context.Context, s Selection) (_ Selection, n int64, err error) {
	if s.State != rules.Failed && s.State != rules.Unknown {
		return s, 0, rules.Invalid("effects in the state %q are not replayed", s.State)
	}
	k, err := l.registered(s.Kind)
	if err != nil {
		return s, 0, err
	}
	err = l.call(ctx, "count problems", func(ctx context.Context) error {
		return l.store.read(ctx, func(q querier, now time.Time) error {
			s.Until = now
			w := s.where(k, Key{})
			w.and("p.at <= ?", now)
			return q.query(ctx, func(r scanner) error { return r.Scan(&n) }, sqlCountSelected+strings.Join(w.conditions, " AND "), w.args...)
		})
	})
	return s, n, err
}

// Select returns the effects of a selection in the order of their keys, page by page, and whether Replay would refuse
// each. It ends after an error.
func (l *Ledger) Select(ctx context.Context, s Selection) iter.Seq2[Selected, error] {
	return func(yield func(Selected, error) bool) {
		for after := (Key{}); ; {
			page, err := l.selectAfter(ctx, s, after)
			if err != nil {
				yield(Selected{}, err)
				return
			}
			for _, one := range page {
				if after = one.Key; !yield(one, nil) {
					return
				}
			}
			if len(page) < selectChunk {
				return
			}
		}
	}
}

func (l *Ledger) selectAfter(ctx context.Context, s Selection, after Key) (page []Selected, err error) {
	k, err := l.registered(s.Kind)
	if err != nil {
		return nil, err
	}
	err = l.call(ctx, "select problems", func(ctx context.Context) error {
		w := s.where(k, after)
		w.and("p.at <= ?", s.Until)
		page, err = selectAll(ctx, l, func(r scanner, one *Selected, now time.Time) error {
			row, group, isLate := &storedRow{}, rules.GroupRunning, false
			if err := r.Scan(append(destinations(row, rowColumns), &one.Class, (*portableTime)(&one.At), (*groupStateColumn)(&group), &isLate)...); err != nil {
				return err
			}
			row.remember()
			one.Key, one.State, one.Error = Key{s.Kind, row.group, row.id}, s.State, row.LastError
			var late *string
			if isLate {
				late = new(string)
			}
			policy := k.policy()
			_, _, _, one.Refused = replay(one.Key, By{}, row, late, &rules.Event{Now: now, Group: group}, &policy)
			return nil
		}, selectedSQL(w.conditions, len(w.args)+1), append(w.args, selectChunk)...)
		return err
	})
	return page, err
}

// ReplaySelected is Replay for an effect of a selection. It returns ErrNotSelected, and changes nothing, if that has changed
// since: another operator has replayed or resolved it, whatever has become of it then.
func (l *Ledger) ReplaySelected(ctx context.Context, s Selection, k Key, by By) error {
	if err := by.check("replay of "+k.text(), true); err != nil {
		return err
	}
	return l.operate(ctx, "replay", k, func(row *storedRow, late *string, ev rules.Event, p rules.Policy) (rules.Row, rules.Writes, Audit, error) {
		if row.State != s.State || row.SettledAt.After(s.Until) {
			return row.Row, rules.Writes{}, Audit{}, fmt.Errorf("once: ledger: effect %s: %w", k.text(), ErrNotSelected)
		}
		return replay(k, by, row, late, &ev, &p)
	})
}
