package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func (m *model) readDue(l *Ledger) map[Key]time.Time {
	all := map[Key]time.Time{}
	require.NoError(m.t, l.store.read(m.t.Context(), func(q querier, _ time.Time) error {
		// By their rows in once_due, and by the effects' numbers of them.
		byEffect := map[Key]time.Time{}
		for view, times := range map[string]map[Key]time.Time{"once_due_effects": all, "once_effect_due": byEffect} {
			if err := q.query(m.t.Context(), func(r scanner) error {
				var k rowKey
				var at time.Time
				err := r.Scan(&k.kind, &k.group, &k.id, (*portableTime)(&at))
				require.NotContains(m.t, times, l.keyOf(k), "it is due once\n%s", m)
				times[l.keyOf(k)] = at
				return err
			}, `SELECT kind, grp, id, at FROM `+view); err != nil {
				return err
			}
		}
		require.Equal(m.t, all, byEffect, m)
		return nil
	}))
	return all
}

// compare checks that no other row has changed, and what belongs to each row.
func (m *model) compare() {
	l, ctx := m.ledgers[m.rnd.IntN(2)], m.t.Context()
	rows, problems := map[Key]rules.Row{}, map[Key]rules.State{}
	parked := map[Group]bool{}
	require.NoError(m.t, l.store.read(ctx, func(q querier, _ time.Time) error {
		return errors.Join(
			q.query(ctx, func(r scanner) error {
				row, err := scanRow(r, rowColumns)
				rows[l.keyOf(row.rowKey)] = stored(row.Row)
				return err
			}, `SELECT `+reads(rowColumns, "")+` FROM once_effects`),
			q.query(ctx, func(r scanner) error {
				var k rowKey
				var s rules.State
				err := r.Scan(&k.kind, &k.group, &k.id, (*stateColumn)(&s))
				problems[l.keyOf(k)] = s
				return err
			}, `SELECT kind, grp, id, state FROM once_problems`),
			q.query(ctx, func(r scanner) error {
				var k rowKey
				err := r.Scan(&k.kind, &k.group)
				parked[l.keyOf(k).of()] = true
				return err
			}, `SELECT kind, grp FROM once_groups WHERE parked`))
	}))
	require.Equal(m.t, m.rows, rows, m)
	due := m.readDue(l)
	require.Len(m.t, due, len(m.due), m)
	wantProblems, totals, parts := map[Key]rules.State{}, map[Group]*Status{}, map[Group]map[string]*Totals{}
	for k, row := range m.rows {
		at, ok := due[k]
		require.Equal(m.t, !row.State.Settled(), ok, "an unsettled effect is due: %s\n%s", k.text(), m)
		require.True(m.t, m.due[k].Equal(at), "%s at %s, want %s\n%s", k.text(), at, m.due[k], m)
		require.True(m.t, !ok || !at.IsZero() || parked[k.of()], "%s is parked, and no sweep would find it\n%s", k.text(), m)
		if totals[k.of()] == nil {
			totals[k.of()], parts[k.of()] = &Status{}, map[string]*Totals{}
		}
		s := totals[k.of()]
		p := parts[k.of()][m.parts[k]]
		if p == nil {
			p = &Totals{Part: m.parts[k]}
			parts[k.of()][m.parts[k]] = p
		}
		for _, n := range []*Totals{&s.Totals, p} {
			n.Accepted++
			switch row.State {
			case rules.Success:
				n.Done++
			case rules.Failed:
				n.Failed++
			case rules.Unknown:
				n.Unknown++
			case rules.Cancelled:
				n.Cancelled++
			}
		}
		switch row.State {
		case rules.Failed, rules.Unknown:
			wantProblems[k] = row.State
		case rules.Sending:
			s.Calling++
		case rules.Pending, rules.Errored, rules.Ambiguous:
			s.Waiting++
		}
	}
	require.Equal(m.t, wantProblems, problems, m)
	for g, want := range totals {
		got := mustStatus(m.t, l, g)
		require.Equal(m.t, m.state(g), got.State)
		require.Equal(m.t, []any{want.Totals, want.Waiting, want.Calling}, []any{got.Totals, got.Waiting, got.Calling}, "%s\n%s", g.text(), m)
		found, err := l.Parts(context.WithoutCancel(ctx), g)
		require.NoError(m.t, err)
		require.Len(m.t, found, len(parts[g]))
		for _, p := range found {
			require.Equal(m.t, *parts[g][p.Part], p, m)
		}
	}
}

// checkCalls compares the stored calls at the end of a history.
func (m *model) checkCalls() {
	for k := range m.rows {
		got := map[rowCall]rules.Outcome{}
		for _, a := range mustExplain(m.t, m.ledgers[0], k).Calls {
			c := rowCall{k, a.Epoch}
			switch {
			case a.Open():
			case a.Late:
				require.Equal(m.t, m.late[c], a.Outcome, "%s %d\n%s", k.text(), a.Epoch, m)
			default:
				got[c] = a.Outcome
			}
		}
		for c, o := range m.ended {
			if c.key == k {
				require.Equal(m.t, o, got[c], "%s %d\n%s", k.text(), c.epoch, m)
			}
		}
	}
}
