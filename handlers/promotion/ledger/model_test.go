package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The test runs one long random history of a few payouts on two instances. It compares every result
// and every row with the pure function.
func TestDatabaseFollowsTheTransitionFunction(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		m := newModel(t, h)
		m.run(800)
		m.counts()
	})
}

func newModel(t *testing.T, h *testDB) *model {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	m := &model{t: t, h: h, rnd: rand.New(rand.NewPCG(seed, 1)), ids: 2, rows: map[payouts.Key]payouts.Row{}, promotions: map[payouts.Promotion]rules.GroupState{},
		items: map[payouts.Key]FeedItem{}, dead: map[string]bool{}, replayed: map[string]bool{}, late: map[call2]rules.Outcome{}}
	for _, name := range []string{"a", "b"} {
		m.ledgers = append(m.ledgers, h.open(t, as(name), func(c *Config, _ *Options) {
			c.Retry.First, c.Retry.Max = time.Second, time.Second
			c.MaxRetries, c.MaxReleased = 2, 3
		}))
	}
	return m
}

func (m *model) run(steps int) {
	for range steps {
		m.step()
		m.compare()
		m.n++
	}
}

type model struct {
	t          *testing.T
	h          *testDB
	rnd        *rand.Rand
	ids        int64 // of promotions, from 1
	ledgers    []*Ledger
	rows       map[payouts.Key]payouts.Row
	promotions map[payouts.Promotion]rules.GroupState
	calls      []call2
	items      map[payouts.Key]FeedItem
	dead       map[string]bool
	replayed   map[string]bool         // replayed generations of dead letters
	late       map[call2]rules.Outcome // first late answer of each call
	n          int
	began      time.Time // the step
	log        []string
}

type call2 struct {
	key   payouts.Key
	epoch int64
}

func (m *model) pick() (*Ledger, payouts.Record) {
	r := record(1+m.rnd.Int64N(m.ids), int64(1+m.rnd.IntN(3)))
	return m.ledgers[m.rnd.IntN(len(m.ledgers))], r
}

func (m *model) promotion(p payouts.Promotion) rules.GroupState {
	if s, ok := m.promotions[p]; ok {
		return s
	}
	return rules.GroupRunning
}

// apply runs the pure function at the time of the database, which is the newest time of the row.
func (m *model) apply(l *Ledger, k payouts.Key, ev rules.Event) rules.Decision {
	x, err := l.Explain(m.t.Context(), k)
	require.NoError(m.t, err)
	got := x.Row
	was, known := m.rows[k]
	if !known {
		was = payouts.Row{Key: k, SummaryID: 9}
		if ev.Kind == rules.EventBegin { // a begin accepts first
			was, _, _ = was.Apply(l.policy, rules.Event{Kind: rules.EventAccept, Now: got.AcceptedAt, Group: rules.GroupRunning})
		}
	}
	var want payouts.Row
	var eff rules.Writes
	var d rules.Decision
	for _, ev.Now = range m.timesOf(l, got) {
		p := l.policy
		// Only the jitter is random.
		p.Delay = func(int) time.Duration { return got.NextAttemptAt.Sub(ev.Now) }
		want, eff, d = was.Apply(p, ev)
		want.ID = got.ID
		want.Version = got.Version // a begin that accepts first counts once more
		if want == got {
			break
		}
	}
	require.Equal(m.t, want, got, "step %d: %v\n%s", m.n, ev, strings.Join(m.log, "\n"))
	if eff.Attempt != nil {
		require.NotEmpty(m.t, x.Calls)
	}
	if eff.DeadLetterClass != "" {
		line := fmt.Sprint(k, " ", got.Epoch) // a replayed payout may fail again
		if eff.DeadLetterClass == rules.ClassConflict {
			line = fmt.Sprint(k, " conflict")
		}
		m.dead[line] = true
	}
	m.rows[k] = got
	return d
}

// timesOf returns the possible times of the change: the times in the row, and both ends of the
// step. The next attempt of an interruption has no delay.
func (m *model) timesOf(l *Ledger, got payouts.Row) []time.Time {
	return []time.Time{got.SettledAt, got.AttemptStartedAt, got.NextAttemptAt, got.QueueDue, got.QueueDue.Add(-l.policy.Lease), m.began, l.clock(m.t)}
}

func (m *model) step() {
	t := m.t
	l, r := m.pick()
	m.began = l.clock(t)
	k, p := r.Key, r.OfPromotion()
	choice := m.rnd.IntN(100)
	m.log = append(m.log, fmt.Sprint(m.n, " ", choice, " ", k, " by ", l.opts.Instance))
	_, known := m.rows[k]
	switch {
	case choice < 15:
		payNow := m.rnd.IntN(3) == 0
		kind := rules.EventAccept
		if known {
			kind = rules.EventAcceptAgain
		}
		a, err := l.acceptOne(t.Context(), r, payNow)
		require.NoError(t, err)
		d := m.apply(l, k, rules.Event{Kind: kind, Group: m.promotion(p), CallNow: payNow, SameRequest: true})
		require.Equal(t, d.Next, a.Next)
	case choice < 20:
		if known {
			require.NoError(t, l.NotEnqueued(t.Context(), []payouts.Key{k})[0])
			m.apply(l, k, rules.Event{Kind: rules.EventNotEnqueued})
		}
	case choice < 50:
		b := mustBegin(t, l, r)
		if !known {
			require.Equal(t, rules.Unannounced, b.Next)
			m.dead[fmt.Sprint(k, " unannounced")] = true
			return
		}
		d := m.apply(l, k, rules.Event{Kind: rules.EventBegin, Group: m.promotion(p), SameRequest: true})
		require.Equal(t, d.Next, b.Next)
		require.Equal(t, d.Reason, b.Why)
		if b.Next == rules.Send || b.Next == rules.Lookup {
			m.calls = append(m.calls, call2{k, b.Epoch})
		}
	case choice < 75:
		if len(m.calls) == 0 {
			return
		}
		i := m.rnd.IntN(len(m.calls))
		c := m.calls[i]
		if m.rnd.IntN(4) > 0 { // otherwise it is settled once more later
			m.calls = append(m.calls[:i], m.calls[i+1:]...)
		}
		o := []rules.Outcome{rules.Done, rules.Throttled, rules.TryAgain, rules.Unclear, rules.Unclear, rules.Rejected, rules.Misconfigured, rules.NotDone, rules.Interrupted, rules.NotSent, rules.Unrecognized}[m.rnd.IntN(11)]
		res := payouts.CallResult{Key: c.key, CallResult: rules.CallResult{Epoch: c.epoch, Outcome: o, Receipt: "tx", Class: "c", Counted: m.rnd.IntN(2) == 0}}
		s := mustSettle(t, l, res)
		d := m.apply(l, c.key, rules.Event{Kind: rules.EventSettle, Result: res.CallResult})
		require.Equal(t, d.Next, s.Next)
		require.Equal(t, d.Stale, s.Stale)
		if _, known := m.late[c]; s.Stale && !known {
			m.late[c] = o
		}
	case choice < 88:
		m.h.advance(time.Duration(m.rnd.IntN(6000)) * time.Millisecond)
	case choice < 90:
		m.h.advance(25 * time.Hour)
	case choice < 93:
		if m.promotion(p) == rules.GroupCancelled {
			require.ErrorIs(t, l.Pause(t.Context(), p, operator), ErrCancelled)
			return
		}
		if m.promotions[p] = rules.GroupPaused; m.rnd.IntN(3) > 0 {
			m.promotions[p] = rules.GroupRunning
			require.NoError(t, l.Resume(t.Context(), p, operator))
		} else {
			require.NoError(t, l.Pause(t.Context(), p, operator))
		}
	case choice < 94 && m.n > 300:
		m.promotions[p] = rules.GroupCancelled
		_, err := l.Cancel(t.Context(), p, operator)
		require.NoError(t, err)
		for k := range m.rows {
			if k.OfPromotion() == p {
				m.apply(l, k, rules.Event{Kind: rules.EventCancel})
			}
		}
	case choice < 96 && known:
		m.person(l, k)
	case choice < 98:
		m.feed(l, p)
	default:
		m.markEnqueued(l, p)
	}
}

// chargedLate reports whether a late answer states a charge.
func (m *model) chargedLate(k payouts.Key) bool {
	for c, o := range m.late {
		if c.key == k && o == rules.Done {
			return true
		}
	}
	return false
}

// person replays a dead letter of the payout, perhaps again, or resolves the payout.
func (m *model) person(l *Ledger, k payouts.Key) {
	if m.rnd.IntN(2) == 0 {
		r := rules.Resolution{Who: "kim", Why: "their book"}
		if r.Done = m.rnd.IntN(2) == 0; r.Done {
			r.Receipt = "tx"
		}
		r.Force = m.rnd.IntN(2) == 0
		err := l.Resolve(m.t.Context(), k, r)
		if m.chargedLate(k) && !r.Done && !r.Force {
			require.ErrorIs(m.t, err, ErrRefused)
			return
		}
		d := m.apply(l, k, rules.Event{Kind: rules.EventResolve, Group: m.promotion(k.OfPromotion()), Resolution: r})
		require.Equal(m.t, d.Refused != 0, errors.Is(err, ErrRefused))
		require.True(m.t, err == nil || d.Refused != 0, err)
		return
	}
	generation := 1 + m.rnd.IntN(20)
	letter := fmt.Sprint(k, generation)
	got, err := l.Replay(m.t.Context(), k, Replay{DeadLetter: k.String(), Generation: generation, Who: "kim", Why: "again"})
	require.NoError(m.t, err)
	if m.replayed[letter] {
		require.Equal(m.t, ReplayAlready, got.Outcome)
		return
	}
	ev := rules.Event{Kind: rules.EventReplay, Group: m.promotion(k.OfPromotion())}
	if row := m.rows[k]; m.chargedLate(k) && !row.MaybeDone {
		row.MaybeDone, row.FirstSentAt = true, row.AcceptedAt
		if _, _, d := row.Apply(l.policy, ev); d.Refused == 0 { // else nothing at all has changed
			m.rows[k] = row
		}
	}
	d := m.apply(l, k, ev)
	require.Equal(m.t, refusal(d.Refused, m.rows[k]), got.Reason)
	require.Equal(m.t, m.rows[k].State, got.State)
	if m.replayed[letter] = d.Refused == 0; m.replayed[letter] {
		require.Equal(m.t, ReplayDone, got.Outcome)
	}
}

// feed stores rows as the feeder reads them; markEnqueued follows some steps later.
func (m *model) feed(l *Ledger, p payouts.Promotion) {
	items, err := l.FeedUnqueued(m.t.Context(), p, 10)
	require.NoError(m.t, err)
	for _, f := range items {
		require.Equal(m.t, rules.QueueNone, m.rows[f.Key].Queue)
		m.items[f.Key] = f
	}
}

func (m *model) markEnqueued(l *Ledger, p payouts.Promotion) {
	var rows []FeedItem
	for k, f := range m.items {
		if k.OfPromotion() == p {
			rows = append(rows, f)
			delete(m.items, k)
		}
	}
	marked, err := l.MarkEnqueued(m.t.Context(), p, "", rows)
	require.NoError(m.t, err)
	want := 0
	for _, f := range rows {
		before := m.rows[f.Key].Version
		m.apply(l, f.Key, rules.Event{Kind: rules.EventEnqueued, Version: f.version})
		if m.rows[f.Key].Version != before {
			want++
		}
	}
	require.Equal(m.t, want, marked)
}

// compare checks that no other row changed.
func (m *model) compare() {
	for _, p := range []payouts.Promotion{{Type: "POINT", ID: 1}, {Type: "POINT", ID: 2}} {
		require.NoError(m.t, m.ledgers[m.n%2].EachPayout(m.t.Context(), p, func(e Payout) error {
			require.Equal(m.t, m.rows[e.Key], e.Row)
			return nil
		}))
	}
}

// counts checks summaries and dead letters at the end.
func (m *model) counts() {
	want := map[payouts.Promotion]map[rules.State]int64{}
	for k, r := range m.rows {
		if want[k.OfPromotion()] == nil {
			want[k.OfPromotion()] = map[rules.State]int64{}
		}
		want[k.OfPromotion()][r.State]++
	}
	dead := int64(0)
	for p, n := range want {
		c, err := m.ledgers[0].Status(m.t.Context(), p)
		require.NoError(m.t, err)
		require.Equal(m.t, []int64{n[rules.Success], n[rules.Failed], n[rules.Unknown], n[rules.Cancelled], n[rules.Pending] + n[rules.Sending] + n[rules.Errored] + n[rules.Ambiguous]},
			[]int64{c.Paid, c.Failed, c.Unknown, c.Cancelled, c.Pending}, p)
		dead += c.Dead
	}
	require.Equal(m.t, int64(len(m.dead)), dead)
}
