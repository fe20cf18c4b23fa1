package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDatabaseFollowsTheTransitionFunction plays one long random history over a few payouts, through two
// instances, and compares every answer and every row with the pure function.
func TestDatabaseFollowsTheTransitionFunction(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		m := &model{t: t, h: h, rnd: rand.New(rand.NewPCG(seed, 1)), rows: map[Key]Row{}, promotions: map[Promotion]PromotionState{},
			fed: map[Key]Feed{}, dead: map[string]bool{}, replayed: map[string]bool{}, late: map[call2]Outcome{}}
		for _, name := range []string{"a", "b"} {
			m.ledgers = append(m.ledgers, h.open(t, as(name), func(c *Config, _ *Options) {
				c.Retry.First, c.Retry.Max = time.Second, time.Second
				c.MaxRetries, c.MaxReleased = 2, 3
			}))
		}
		for m.n = range 800 {
			m.step()
			m.compare()
		}
		m.counts()
	})
}

type model struct {
	t          *testing.T
	h          *home
	rnd        *rand.Rand
	ledgers    []*Ledger
	rows       map[Key]Row
	promotions map[Promotion]PromotionState
	calls      []call2
	fed        map[Key]Feed
	dead       map[string]bool
	replayed   map[string]bool   // letters and generations that had their effect
	late       map[call2]Outcome // the first answer of each call that came after somebody else had taken over
	n          int
	began      time.Time // the step
	log        []string
}

type call2 struct {
	key   Key
	epoch int64
}

func (m *model) pick() (*Ledger, Record) {
	r := record(int64(1+m.rnd.IntN(2)), int64(1+m.rnd.IntN(3)))
	return m.ledgers[m.rnd.IntN(len(m.ledgers))], r
}

func (m *model) promotion(p Promotion) PromotionState {
	if s, ok := m.promotions[p]; ok {
		return s
	}
	return PromotionRunning
}

// apply runs the pure function at the time the database has used, which is the row's newest time stamp.
func (m *model) apply(l *Ledger, k Key, ev event) decision {
	x, err := l.Explain(m.t.Context(), k)
	require.NoError(m.t, err)
	got := x.Row
	was, known := m.rows[k]
	if !known {
		was = Row{Key: k, SummaryID: 9}
		if ev.kind == evBegin { // a begin accepts first
			was, _, _ = l.policy.apply(was, event{kind: evAccept, now: got.AcceptedAt, promotion: PromotionRunning})
		}
	}
	var want Row
	var eff effects
	var d decision
	for _, ev.now = range m.timesOf(l, got) {
		p := l.policy
		// Jitter is the only thing the pure function can't know.
		p.delay = func(int) time.Duration { return got.NextAttemptAt.Sub(ev.now) }
		want, eff, d = p.apply(was, ev)
		want.ID = got.ID
		want.Version = got.Version // a begin that accepts first counts once more
		if want == got {
			break
		}
	}
	require.Equal(m.t, want, got, "step %d: %v\n%s", m.n, ev, strings.Join(m.log, "\n"))
	if eff.attempt != nil {
		require.NotEmpty(m.t, x.Calls)
	}
	if eff.dead != "" {
		line := fmt.Sprint(k, " ", got.Epoch) // a payout that was replayed may be given up again
		if eff.dead == ClassConflict {
			line = fmt.Sprint(k, " conflict")
		}
		m.dead[line] = true
	}
	m.rows[k] = got
	return d
}

// timesOf lists the moments at which the database may have made the change: those that a change leaves in the row (a
// retry's with the delay of an interruption, which is none), and the two ends of the step.
func (m *model) timesOf(l *Ledger, got Row) []time.Time {
	return []time.Time{got.SettledAt, got.AttemptStartedAt, got.NextAttemptAt, got.HintDue, got.HintDue.Add(-l.policy.lease), m.began, l.clock(m.t)}
}

func (m *model) step() {
	t := m.t
	l, r := m.pick()
	m.began = l.clock(t)
	k, p := r.Key, r.Of()
	choice := m.rnd.IntN(100)
	m.log = append(m.log, fmt.Sprint(m.n, " ", choice, " ", k, " by ", l.opts.Instance))
	_, known := m.rows[k]
	switch {
	case choice < 15:
		payNow := m.rnd.IntN(3) == 0
		kind := evAccept
		if known {
			kind = evAcceptAgain
		}
		a, err := l.Accept(t.Context(), r, payNow)
		require.NoError(t, err)
		d := m.apply(l, k, event{kind: kind, promotion: m.promotion(p), payNow: payNow, same: true})
		require.Equal(t, d.next, a.Next)
	case choice < 20:
		if known {
			require.NoError(t, l.NotEnqueued(t.Context(), k))
			m.apply(l, k, event{kind: evNotEnqueued})
		}
	case choice < 50:
		b := mustBegin(t, l, r)
		if !known {
			require.Equal(t, Unannounced, b.Next)
			m.dead[fmt.Sprint(k, " unannounced")] = true
			return
		}
		d := m.apply(l, k, event{kind: evBegin, promotion: m.promotion(p), same: true})
		require.Equal(t, d.next, b.Next)
		require.Equal(t, d.why, b.Why)
		if b.Next == Send || b.Next == Ask {
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
		o := []Outcome{Paid, NotCharged, TryAgain, PerhapsCharged, PerhapsCharged, Rejected, OwnFault, NoCharge, Interrupted, NotSent, Unrecognized}[m.rnd.IntN(11)]
		res := Result{Key: c.key, Epoch: c.epoch, Outcome: o, TransactionKey: "tx", Class: "c", Counted: m.rnd.IntN(2) == 0}
		s := mustSettle(t, l, res)
		d := m.apply(l, c.key, event{kind: evSettle, result: res})
		require.Equal(t, d.next, s.Next)
		require.Equal(t, d.stale, s.Stale)
		if _, known := m.late[c]; s.Stale && !known {
			m.late[c] = o
		}
	case choice < 88:
		m.h.advance(time.Duration(m.rnd.IntN(6000)) * time.Millisecond)
	case choice < 90:
		m.h.advance(25 * time.Hour)
	case choice < 93:
		if m.promotion(p) == PromotionCancelled {
			require.ErrorIs(t, l.Pause(t.Context(), p, ann), ErrCancelled)
			return
		}
		if m.promotions[p] = PromotionPaused; m.rnd.IntN(3) > 0 {
			m.promotions[p] = PromotionRunning
			require.NoError(t, l.Resume(t.Context(), p, ann))
		} else {
			require.NoError(t, l.Pause(t.Context(), p, ann))
		}
	case choice < 94 && m.n > 300:
		m.promotions[p] = PromotionCancelled
		_, err := l.Cancel(t.Context(), p, ann)
		require.NoError(t, err)
		for k := range m.rows {
			if k.Of() == p {
				m.apply(l, k, event{kind: evCancel})
			}
		}
	case choice < 96 && known:
		m.person(l, k)
	case choice < 98:
		m.feed(l, p)
	default:
		m.markFed(l, p)
	}
}

// chargedLate reports whether a late answer says that the payout was charged.
func (m *model) chargedLate(k Key) bool {
	for c, o := range m.late {
		if c.key == k && o == Paid {
			return true
		}
	}
	return false
}

// person replays a letter of the payout, perhaps one that was replayed before, or says what became of it.
func (m *model) person(l *Ledger, k Key) {
	if m.rnd.IntN(2) == 0 {
		r := Resolution{Who: "kim", Why: "their book"}
		if r.Paid = m.rnd.IntN(2) == 0; r.Paid {
			r.TransactionKey = "tx"
		}
		r.Force = m.rnd.IntN(2) == 0
		err := l.Resolve(m.t.Context(), k, r)
		if m.chargedLate(k) && !r.Paid && !r.Force {
			require.ErrorIs(m.t, err, ErrRefused)
			return
		}
		d := m.apply(l, k, event{kind: evResolve, promotion: m.promotion(k.Of()), resolve: r})
		require.Equal(m.t, d.refused != "", errors.Is(err, ErrRefused))
		require.True(m.t, err == nil || d.refused != "", err)
		return
	}
	generation := 1 + m.rnd.IntN(20)
	letter := fmt.Sprint(k, generation)
	got, err := l.Replay(m.t.Context(), k, Replay{Letter: k.String(), Generation: generation, Who: "kim", Why: "again"})
	require.NoError(m.t, err)
	if m.replayed[letter] {
		require.Equal(m.t, ReplayAlready, got.Outcome)
		return
	}
	ev := event{kind: evReplay, promotion: m.promotion(k.Of())}
	if row := m.rows[k]; m.chargedLate(k) && !row.MaybeCharged {
		row.MaybeCharged, row.FirstSentAt = true, row.AcceptedAt
		if _, _, d := l.policy.apply(row, ev); d.refused == "" { // else nothing at all has changed
			m.rows[k] = row
		}
	}
	d := m.apply(l, k, ev)
	require.Equal(m.t, d.refused, got.Reason)
	require.Equal(m.t, m.rows[k].State, got.State)
	if m.replayed[letter] = d.refused == ""; m.replayed[letter] {
		require.Equal(m.t, ReplayDone, got.Outcome)
	}
}

// feed remembers rows as a feeder reads them; markFed comes some steps later.
func (m *model) feed(l *Ledger, p Promotion) {
	fed, err := l.FeedNone(m.t.Context(), p, 10)
	require.NoError(m.t, err)
	for _, f := range fed {
		require.Equal(m.t, HintNone, m.rows[f.Key].Hint)
		m.fed[f.Key] = f
	}
}

func (m *model) markFed(l *Ledger, p Promotion) {
	var rows []Feed
	for k, f := range m.fed {
		if k.Of() == p {
			rows = append(rows, f)
			delete(m.fed, k)
		}
	}
	marked, err := l.MarkFed(m.t.Context(), p, "", rows)
	require.NoError(m.t, err)
	want := 0
	for _, f := range rows {
		before := m.rows[f.Key].Version
		m.apply(l, f.Key, event{kind: evFed, version: f.seq})
		if m.rows[f.Key].Version != before {
			want++
		}
	}
	require.Equal(m.t, want, marked)
}

// compare checks that no row changed that nothing happened to.
func (m *model) compare() {
	for _, p := range []Promotion{{"POINT", 1}, {"POINT", 2}} {
		require.NoError(m.t, m.ledgers[m.n%2].Books(m.t.Context(), p, func(e Entry) error {
			require.Equal(m.t, m.rows[e.Key], e.Row)
			return nil
		}))
	}
}

// counts checks summaries and dead letters at the end.
func (m *model) counts() {
	want := map[Promotion]map[State]int64{}
	for k, r := range m.rows {
		if want[k.Of()] == nil {
			want[k.Of()] = map[State]int64{}
		}
		want[k.Of()][r.State]++
	}
	dead := int64(0)
	for p, n := range want {
		c, err := m.ledgers[0].Status(m.t.Context(), p)
		require.NoError(m.t, err)
		require.Equal(m.t, []int64{n[Success], n[Failed], n[Unknown], n[Cancelled], n[Pending] + n[Sending] + n[Errored] + n[Ambiguous]},
			[]int64{c.Paid, c.Failed, c.Unknown, c.Cancelled, c.Pending}, p)
		dead += c.Dead
	}
	require.Equal(m.t, int64(len(m.dead)), dead)
}
