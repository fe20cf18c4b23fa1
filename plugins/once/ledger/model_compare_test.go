package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// seen is what is stored.
type seen struct {
	now      time.Time
	rows     map[Key]*storedRow
	due      map[Key]time.Time
	problems map[Key]rules.State
	results  map[endOf]Result
	parked   map[Group]bool
	statuses map[Group]Status
	parts    map[Group][]Totals
}

// look returns what is stored since the last operation. It is read once and as a whole, because the round trips of the
// comparisons took most of the test's time.
func (m *model) look(l *Ledger) *seen {
	if m.seen != nil {
		return m.seen
	}
	s := &seen{rows: map[Key]*storedRow{}, due: map[Key]time.Time{}, problems: map[Key]rules.State{}, results: map[endOf]Result{}, parked: map[Group]bool{},
		statuses: map[Group]Status{}, parts: map[Group][]Totals{}}
	ctx, counts := m.t.Context(), strings.Join(countColumns(), ", ")
	require.NoError(m.t, l.store.read(ctx, func(q querier, now time.Time) error {
		s.now = now
		// By the effects' numbers of their rows in once_due, and by those rows.
		byEffect := map[Key]time.Time{}
		dueIn := func(view string, times map[Key]time.Time) error {
			return q.query(ctx, func(r scanner) error {
				var k rowKey
				var at time.Time
				err := r.Scan(&k.kind, &k.group, &k.id, (*portableTime)(&at))
				_, twice := times[l.keyOf(k)]
				require.False(m.t, twice, "%s is due once\n%s", l.keyOf(k).text(), m)
				times[l.keyOf(k)] = at
				return err
			}, `SELECT kind, grp, id, at FROM `+view)
		}
		err := errors.Join(dueIn("once_due_effects", s.due), dueIn("once_effect_due", byEffect),
			q.query(ctx, func(r scanner) error {
				row, err := scanRow(r, effectColumns)
				s.rows[l.keyOf(row.rowKey)] = row
				return err
			}, `SELECT `+reads(effectColumns, "")+` FROM once_effects`),
			q.query(ctx, func(r scanner) error {
				var k rowKey
				var state rules.State
				err := r.Scan(&k.kind, &k.group, &k.id, (*stateColumn)(&state))
				s.problems[l.keyOf(k)] = state
				return err
			}, `SELECT kind, grp, id, state FROM once_problems`),
			q.query(ctx, func(row scanner) error {
				var r Result
				var k rowKey
				err := row.Scan(&k.kind, &k.group, &k.id, (*stateColumn)(&r.State), (*portableTime)(&r.SettledAt), &r.Attempts, &r.Receipt)
				r.Key = l.keyOf(k)
				require.NotContains(m.t, s.results, r.end(), "an end has one result\n%s", m)
				s.results[r.end()] = r
				return err
			}, `SELECT kind, grp, id, state, at, attempts, coalesce(receipt, '') FROM once_results`),
			q.query(ctx, func(r scanner) error {
				var k rowKey
				err := r.Scan(&k.kind, &k.group)
				s.parked[l.keyOf(k).of()] = true
				return err
			}, `SELECT kind, grp FROM once_groups WHERE parked`),
			q.query(ctx, func(r scanner) error {
				var status Status
				err := l.scanStatus(r, &status, now)
				s.statuses[status.Group] = status
				return err
			}, fmt.Sprintf(sqlStatus, "$1", `SELECT kind, grp, state, created_at, changed_at, expected FROM once_groups
				UNION ALL SELECT kind, grp, 1, min(accepted_at), min(accepted_at), CAST(NULL AS bigint) FROM once_effects AS e
				WHERE NOT EXISTS (SELECT 1 FROM once_groups AS o WHERE o.kind = e.kind AND o.grp = e.grp) GROUP BY kind, grp`), now),
			q.query(ctx, func(r scanner) error {
				var k rowKey
				var part Totals
				err := r.Scan(append([]any{&k.kind, &k.group, &part.Part}, part.counts()...)...)
				g := l.keyOf(k).of()
				s.parts[g] = append(s.parts[g], part)
				return err
			}, `SELECT kind, grp, part, `+sumCounts+` FROM (SELECT kind, grp, part, `+counts+` FROM once_totals WHERE grp <> '' -- that is a whole kind
				UNION ALL SELECT kind, grp, part, `+counts+` FROM once_deltas) AS t GROUP BY kind, grp, part`))
		require.Equal(m.t, s.due, byEffect, m)
		return err
	}))
	m.seen = s
	return s
}

// compare checks that no other row has changed, and what belongs to each row.
func (m *model) compare(last bool) {
	l := m.ledgers[m.rnd.IntN(2)]
	now := m.look(l)
	rows := map[Key]rules.Row{}
	for k, row := range now.rows {
		rows[k] = stored(row.Row)
	}
	require.Equal(m.t, m.rows, rows, m)
	require.Len(m.t, now.due, len(m.due), m)
	wantProblems, totals, parts := map[Key]rules.State{}, map[Group]*Status{}, map[Group]map[string]*Totals{}
	for k, row := range m.rows {
		at, ok := now.due[k]
		require.Equal(m.t, !row.State.Settled(), ok, "an unsettled effect is due: %s\n%s", k.text(), m)
		require.True(m.t, m.due[k].Equal(at), "%s at %s, want %s\n%s", k.text(), at, m.due[k], m)
		require.True(m.t, !ok || !at.IsZero() || now.parked[k.of()], "%s is parked, and no sweep would find it\n%s", k.text(), m)
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
		switch {
		case row.State == rules.Failed, row.State == rules.Unknown:
			wantProblems[k] = row.State
		case row.State == rules.Sending && at.After(now.now):
			s.Calling++
		case !row.State.Settled():
			s.Waiting++
		}
	}
	for g := range now.statuses { // some have no effect yet
		if totals[g] == nil {
			totals[g], parts[g] = &Status{}, map[string]*Totals{}
		}
	}
	require.Equal(m.t, wantProblems, now.problems, m)
	require.Equal(m.t, m.results, now.results, m)
	check := func(g Group, status Status, found []Totals) {
		want := *totals[g]
		if ended := want.Calling - status.Calling; ended > 0 { // leases, since the other read
			want.Calling, want.Waiting = want.Calling-ended, want.Waiting+ended
		}
		require.Equal(m.t, []any{m.state(g), m.sizes[g]}, []any{status.State, status.Expected}, m)
		require.Equal(m.t, []any{want.Totals, want.Waiting, want.Calling}, []any{status.Totals, status.Waiting, status.Calling}, "%s\n%s", g.text(), m)
		require.Len(m.t, found, len(parts[g]))
		for _, p := range found {
			require.Equal(m.t, *parts[g][p.Part], p, m)
		}
	}
	for g := range totals {
		require.Contains(m.t, now.statuses, g, m)
		require.Equal(m.t, totals[g].Calling, now.statuses[g].Calling, "%s\n%s", g.text(), m)
		check(g, now.statuses[g], now.parts[g])
	}
	for g := range totals { // as a caller reads it: one group, and each of them after the last step
		found, err := l.Parts(m.t.Context(), g)
		require.NoError(m.t, err)
		check(g, mustStatus(m.t, l, g), found)
		if !last {
			break
		}
	}
}

// checkCalls compares each effect, as a caller reads it, and its stored calls at the end of a history.
func (m *model) checkCalls() {
	for k := range m.rows {
		got := map[rowCall]rules.Outcome{}
		x := mustExplain(m.t, m.ledgers[0], k)
		require.Equal(m.t, m.rows[k], x.Row, m)
		for _, a := range x.Calls {
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
