package ledger

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// steerKind pauses a kind, or has it called for again.
func (m *model) steerKind(l *Ledger) {
	kind := testKinds[m.rnd.IntN(len(testKinds))]
	if m.paused[kind] = m.rnd.IntN(3) == 0; m.paused[kind] {
		require.NoError(m.t, l.PauseKind(m.t.Context(), kind, operator))
	} else {
		require.NoError(m.t, l.ResumeKind(m.t.Context(), kind, operator))
	}
}

// expect says how many effects a group will have, before its first one or later.
func (m *model) expect(l *Ledger, g Group) {
	total := int64(m.rnd.IntN(3))
	require.NoError(m.t, l.Expect(m.t.Context(), g, total))
	if total > 0 {
		m.sizes[g] = total
	}
}

// steered compares the error of a pause, a resume or a cancellation, and reports whether there was none.
func (m *model) steered(g Group, to rules.GroupState, how []Steer, err error) bool {
	_, sized := m.sizes[g]
	_, known := m.groups[g]
	var accepted, over int64
	for k, row := range m.rows {
		if k.of() == g {
			accepted++
			if row.State == rules.Success || row.State == rules.Cancelled {
				over++
			}
		}
	}
	from, future := m.state(g), len(how) > 0
	switch {
	case !future && !sized && !known && accepted == 0:
		require.ErrorIs(m.t, err, ErrNotFound, m)
	case from == rules.GroupCancelled && to != rules.GroupCancelled:
		require.ErrorIs(m.t, err, ErrCancelled, m)
	case !future && from != to && to != rules.GroupRunning && sized && accepted >= m.sizes[g] && over == accepted:
		require.ErrorIs(m.t, err, ErrFinished, m)
	default:
		require.NoError(m.t, err, m)
		m.groups[g] = to
		return true
	}
	return false
}

// steer is also for groups without an effect.
func (m *model) steer(l *Ledger) {
	g, ctx := m.record().of(), m.t.Context()
	if k, ok := m.known(); ok && m.rnd.IntN(3) > 0 {
		g = k.of()
	}
	if m.rnd.IntN(2) == 0 {
		m.expect(l, g)
	}
	var how []Steer
	if m.rnd.IntN(3) == 0 {
		how = []Steer{Future}
	}
	switch choice := m.rnd.IntN(8); {
	case choice < 4:
		m.steered(g, rules.GroupPaused, how, l.Pause(ctx, g, operator, how...))
	case choice < 7:
		m.steered(g, rules.GroupRunning, nil, l.Resume(ctx, g, operator))
	default:
		c, err := l.Cancel(ctx, g, operator, how...)
		if !m.steered(g, rules.GroupCancelled, how, err) {
			return
		}
		want := Cancellation{}
		for k, row := range m.rows {
			if k.of() != g || row.State.Settled() {
				continue
			}
			m.apply(l, k, row, rules.Event{Kind: rules.EventCancel}, true)
			switch m.rows[k].State {
			case rules.Cancelled:
				want.Cancelled++
			case rules.Sending:
				if m.due[k].After(m.began) {
					want.Calling++
				} else {
					want.Ambiguous++
				}
			case rules.Ambiguous:
				want.Ambiguous++
			}
		}
		if ended := want.Calling - c.Calling; ended > 0 { // leases, since the step began
			want.Calling, want.Ambiguous = want.Calling-ended, want.Ambiguous+ended
		}
		require.Equal(m.t, want, c, m)
	}
}

func (m *model) sweep(l *Ledger) {
	require.NoError(m.t, l.Sweep(m.t.Context()))
	due, after := m.look(l).due, l.clock(m.t)
	for k, at := range m.due {
		if at.IsZero() && m.state(k.of()) != rules.GroupPaused {
			now := due[k]
			require.False(m.t, now.IsZero() || now.Before(m.began) || now.After(after), "%s is due again\n%s", k.text(), m)
			m.due[k] = now
		}
	}
	n := 0
	require.NoError(m.t, l.store.read(m.t.Context(), func(q querier, _ time.Time) error {
		return q.query(m.t.Context(), func(r scanner) error { return r.Scan(&n) }, `SELECT count(*) FROM once_deltas`)
	}))
	require.Zero(m.t, n, "all counts are in the totals")
	require.Zero(m.t, m.endedRows(l, m.began), "rows of ended leases whose calls were all answered\n%s", m)
}

// operate replays or resolves an effect, as an operator does.
func (m *model) operate(l *Ledger) {
	k, ok := m.known()
	if !ok {
		return
	}
	late := false
	for c, o := range m.late {
		late = late || c.key == k && o == rules.Done
	}
	row := m.rows[k]
	ev := rules.Event{Kind: rules.EventReplay, Group: m.state(k.of())}
	var err error
	if m.rnd.IntN(2) == 0 {
		err = l.Replay(m.t.Context(), k, operator)
		if late && !row.MaybeDone {
			row.MaybeDone, row.FirstSentAt = true, row.AcceptedAt
		}
		if _, _, d := policyOf(k.Kind).Apply(row, withNow(ev, l.clock(m.t))); d.Refused != 0 {
			row = m.rows[k]
		}
	} else {
		r := rules.Resolution{Who: "kim", Why: "their book", Force: m.rnd.IntN(2) == 0}
		if r.Done = m.rnd.IntN(2) == 0; r.Done {
			r.Receipt = "found"
		}
		err = l.Resolve(m.t.Context(), k, r)
		if late && !r.Done && !r.Force {
			var refused *RefusedError
			require.ErrorAs(m.t, err, &refused)
			require.True(m.t, refused.Late)
			return
		}
		ev.Kind, ev.Resolution = rules.EventResolve, r
	}
	d := m.apply(l, k, row, ev, true)
	var refused *RefusedError
	if errors.As(err, &refused) {
		require.Equal(m.t, d.Refused, refused.Refusal, m)
		return
	}
	require.NoError(m.t, err)
	require.Zero(m.t, d.Refused, m)
}

func withNow(ev rules.Event, now time.Time) rules.Event {
	ev.Now = now
	return ev
}
