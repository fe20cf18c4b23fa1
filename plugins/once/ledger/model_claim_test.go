package ledger

import (
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The kinds of the histories whose effects wait for ClaimRows, and how long.
var graces = map[string]time.Duration{"invoice": 5 * time.Second, "mail": 40 * time.Second}

// entry tells a worker of a row.
type entry struct {
	kind string
	row  int64
}

// enter notes the row of an effect that was accepted, whose number is perhaps lost.
func (m *model) enter(r Record, accepted Accepted, row int64) {
	at, due := m.rows[r.Key].AcceptedAt, m.due[r.Key]
	if accepted != Fresh || graces[r.Kind] == 0 || due.Equal(m.rows[r.Key].NextAttemptAt) {
		require.Zero(m.t, row, "only claims by lane find %s\n%s", r.text(), m)
		return
	}
	require.NotZero(m.t, row, "%s has a row\n%s", r.text(), m)
	require.Equal(m.t, at.Add(graces[r.Kind]), due, m)
	m.rowOf[r.Key] = row
	if e := (entry{r.Kind, row}); !slices.Contains(m.entries, e) && m.rnd.IntN(4) > 0 {
		m.entries = append(m.entries, e)
	}
}

// claimRows claims a few rows. Their entries may come again: after a claim of a part, of all, or much later.
func (m *model) claimRows(l *Ledger) {
	kind := testKinds[m.rnd.IntN(len(testKinds))]
	limit := []int{1, 2, 100}[m.rnd.IntN(3)]
	rows := []int64{1 + m.rnd.Int64()/2} // and one that is in no table
	for range 1 + m.rnd.IntN(3) {
		if len(m.entries) == 0 {
			break
		}
		i := m.rnd.IntN(len(m.entries))
		if rows = append(rows, m.entries[i].row); m.rnd.IntN(8) > 0 { // otherwise of another kind
			kind = m.entries[i].kind
		}
		if m.rnd.IntN(2) == 0 {
			m.entries = slices.Delete(m.entries, i, i+1)
		}
	}
	died := m.mayDie(l)
	claimed, rest, err := l.ClaimRows(m.t.Context(), kind, rows, limit)
	if err != nil {
		require.Equal(m.t, rows, rest, "a claim whose end is not known is repeated")
	}
	left := m.checkClaim(l, kind, limit, claimed, died(), err, func(k Key, at time.Time) (may, must bool) {
		row := m.rowOf[k]
		may = row != 0 && slices.Contains(rows, row) && !at.IsZero()
		return may, may && !m.parked[k]
	})
	for _, k := range left {
		require.Contains(m.t, rest, m.rowOf[k], "%s waits, and nobody would look before its grace has ended\n%s", k.text(), m)
	}
	if limit == 100 && err == nil {
		require.Empty(m.t, rest, "nothing is left\n%s", m)
	}
}

func (m *model) claim(l *Ledger) {
	kind := testKinds[m.rnd.IntN(len(testKinds))]
	limit := []int{1, 100}[m.rnd.IntN(2)]
	for lane := range Lanes {
		died := m.mayDie(l)
		claimed, err := l.Claim(m.t.Context(), kind, lane, limit)
		how, after := died(), sync.OnceValue(func() time.Time { return l.clock(m.t) })
		m.checkClaim(l, kind, limit, claimed, how, err, func(k Key, at time.Time) (may, must bool) {
			may = laneOf(k.Group) == int64(lane) && !at.IsZero() && !at.After(after())
			return may, may && !at.After(m.began)
		})
	}
}

// checkClaim compares a claim. asked says of an effect that is due at a time whether the claim may meet it, and whether
// it must unless its limit is reached. It returns those that it must have met and has left.
func (m *model) checkClaim(l *Ledger, kind string, limit int, claimed []Claimed, how death, err error, asked func(k Key, at time.Time) (may, must bool)) (left []Key) {
	if how == alive {
		require.NoError(m.t, err)
	} else {
		require.ErrorIs(m.t, err, errKilled)
	}
	if how == beforeCommit {
		return nil
	}
	got := map[Key]Claimed{}
	for _, c := range claimed {
		got[c.Key] = c
	}
	require.Len(m.t, claimed, len(got), "one call per effect")
	var met []Key
	parked := 0
	for k, at := range m.due {
		may, must := asked(k, at)
		if k.Kind != kind || !may {
			continue
		}
		if now, ok := m.look(l).due[k]; !ok || !now.Equal(at) {
			met = append(met, k)
			if ok && now.IsZero() {
				parked++ // with everything of its row
			}
		} else if must {
			left = append(left, k)
		}
	}
	if m.paused[kind] {
		require.Empty(m.t, met, "the kind is paused, and nothing of it changes\n%s", m)
		require.Empty(m.t, claimed, "the kind is paused\n%s", m)
		return nil
	}
	if limit == 100 {
		require.Empty(m.t, left, "due and not met\n%s", m)
	}
	require.LessOrEqual(m.t, len(met)-parked, limit)
	require.True(m.t, len(left) == 0 || len(met) >= limit, "the limit is used\n%s", m)
	for _, k := range met {
		row := m.rows[k]
		d := m.apply(l, k, row, rules.Event{Kind: rules.EventBegin, Group: m.state(k.of()), SameRequest: true}, true)
		c, called := got[k]
		if how == afterCommit {
			continue // nobody has the lease
		}
		require.Equal(m.t, d.Next == rules.Send || d.Next == rules.Lookup, called, "%s %s\n%s", k.text(), d.Next, m)
		if !called {
			continue
		}
		delete(got, k)
		require.Equal(m.t, d.Next == rules.Lookup, c.Lookup)
		require.Equal(m.t, m.rows[k].Epoch, c.Epoch)
		require.Equal(m.t, m.rows[k].Attempts, c.Number)
		x := mustExplain(m.t, l, k)
		require.Equal(m.t, m.rows[k], x.Row, m)
		require.Equal(m.t, x.Payload, c.Request)
		require.True(m.t, lastSent(x).Equal(c.LastSent), "last sent %s, want %s: %s\n%s", c.LastSent, lastSent(x), k.text(), m)
		m.calls = append(m.calls, rowCall{k, c.Epoch}) // or its worker is lost: perhaps it is never settled
	}
	require.Empty(m.t, got, "claimed and not due\n%s", m)
	return left
}
