package once

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rate"
)

// fleet is what the ledger does for limits, with a clock of the test.
type fleet struct {
	now    time.Time
	limits ledger.Limits
	lease  time.Duration
	tat    time.Time
	rows   map[*member]row
	asks   int
	failed func() bool // the database does not answer
}

type row struct {
	slots, wanted int
	until         time.Time
}

// member is an instance with a clock of its own, and its calls by the time of their end.
type member struct {
	limiter limiter
	ahead   time.Duration
	asleep  time.Time // nothing is due for it before
	calls   []time.Time
}

func (f *fleet) permit(who *member, a ledger.Ask) (ledger.Permit, error) {
	f.asks++
	if f.failed != nil && f.failed() {
		return ledger.Permit{}, errors.New("the database is away")
	}
	p := ledger.Permit{Limits: f.limits}
	if f.limits.InFlight > 0 && a.Slots > 0 {
		left, wanted := f.limits.InFlight, []int{}
		for m, r := range f.rows {
			if m != who && r.until.After(f.now) {
				left, wanted = left-r.slots, append(wanted, r.wanted)
			}
		}
		p.Slots = max(0, min(left, rate.Share(f.limits.InFlight, append(wanted, a.Slots), len(wanted))))
		f.rows[who] = row{max(p.Slots, a.Running), a.Slots, f.now.Add(ledger.SlotLife(f.lease))}
		if p.Slots <= a.Running {
			return p, nil
		}
	}
	if f.limits.PerSecond > 0 && a.Tokens > 0 {
		p.Tokens, p.Wait, f.tat = rate.Take(f.tat, f.now, f.limits.PerSecond, a.Tokens)
	}
	return p, nil
}

// turn lets a member begin calls of a length, at most places at once, and returns how many it began.
func (f *fleet) turn(m *member, places int, length func() time.Duration) (began int) {
	m.end(f.now)
	clock := func() time.Time { return f.now.Add(m.ahead) }
	if d, _ := m.limiter.wait(clock(), len(m.calls)); d > 0 || len(m.calls) >= places {
		return 0
	}
	n, err := m.limiter.allow(f.limits, places-len(m.calls), len(m.calls), clock, func(a ledger.Ask) (ledger.Permit, error) { return f.permit(m, a) })
	if err != nil {
		n = 0
	}
	for range n {
		m.calls = append(m.calls, f.now.Add(length()))
	}
	m.limiter.begun(n, clock())
	return n
}

func (m *member) end(now time.Time) {
	m.calls = slices.DeleteFunc(m.calls, func(end time.Time) bool { return !end.After(now) })
}

func newFleet(limits ledger.Limits, members int) (*fleet, []*member) {
	f := &fleet{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), limits: limits, lease: 8 * time.Second, rows: map[*member]row{}}
	all := make([]*member, members)
	for i := range all {
		all[i] = f.member()
	}
	return f, all
}

func (f *fleet) member() *member { return &member{limiter: limiter{lease: f.lease}} }

// Instances with wrong clocks, long calls and a database that is sometimes away never exceed a limit, also when
// they are killed: their calls then run on until their leases have ended.
func TestTheFleetKeepsItsLimits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		limits := ledger.Limits{PerSecond: []float64{0, 0.5, 3, 40, 300}[random.IntN(5)], InFlight: random.IntN(12)}
		f, alive := newFleet(limits, 1+random.IntN(5))
		f.failed = func() bool { return random.IntN(10) == 0 }
		var dead []*member
		var begins []time.Time
		for range 3000 {
			f.now = f.now.Add(time.Duration(random.Int64N(int64(60 * time.Millisecond))))
			i := random.IntN(len(alive))
			if random.IntN(150) == 0 {
				dead = append(dead, alive[i])
				alive[i] = f.member()
				alive[i].ahead = time.Duration(random.Int64N(int64(time.Hour))) - time.Hour/2
			}
			if random.IntN(60) == 0 {
				alive[i].asleep = f.now.Add(time.Duration(random.Int64N(int64(4 * f.lease))))
			}
			if f.now.Before(alive[i].asleep) {
				continue
			}
			n := f.turn(alive[i], 1+random.IntN(16), func() time.Duration { return time.Duration(random.Int64N(int64(f.lease))) })
			for range n {
				begins = append(begins, f.now)
			}
			running := 0
			for _, m := range append(slices.Clone(dead), alive...) {
				m.end(f.now)
				running += len(m.calls)
			}
			if limits.InFlight > 0 {
				require.LessOrEqual(t, running, limits.InFlight, "seed %d, %s", seed, limits)
			}
		}
		require.NotEmpty(t, begins, "seed %d, %s", seed, limits)
		if limits.PerSecond == 0 {
			continue
		}
		for i, from := range begins {
			for j, to := range begins[i:] {
				most := limits.PerSecond*(to.Sub(from)+rate.Chunk+rate.Life).Seconds() + 1 + 1e-6
				if float64(j+1) > most {
					require.LessOrEqual(t, float64(j+1), most, "seed %d, %s, in %s", seed, limits, to.Sub(from))
				}
			}
		}
	}
}

// With enough work the fleet uses its limit, and asks the ledger a few times a second.
func TestTheFleetUsesItsLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		members int
		limits  ledger.Limits
		call    time.Duration
		least   float64 // calls per second
	}{
		{1, ledger.Limits{PerSecond: 200}, 20 * time.Millisecond, 0.95 * 200},
		{4, ledger.Limits{PerSecond: 200}, 20 * time.Millisecond, 0.95 * 200},
		{4, ledger.Limits{PerSecond: 1}, 20 * time.Millisecond, 0.95},
		{4, ledger.Limits{PerSecond: 300}, 200 * time.Millisecond, 0.95 * 300}, // each could make 80 a second
		{1, ledger.Limits{InFlight: 8}, 100 * time.Millisecond, 0.95 * 80},
		{4, ledger.Limits{InFlight: 8}, 100 * time.Millisecond, 0.95 * 80},
		{4, ledger.Limits{InFlight: 10}, 100 * time.Millisecond, 0.95 * 100},
		{2, ledger.Limits{InFlight: 1}, 100 * time.Millisecond, 0.95 * 10}, // fewer than instances
		{3, ledger.Limits{InFlight: 2}, 100 * time.Millisecond, 0.95 * 20},
		{4, ledger.Limits{PerSecond: 60, InFlight: 8}, 100 * time.Millisecond, 0.95 * 60},
	} {
		f, all := newFleet(c.limits, c.members)
		const warm, seconds, step = 15 * time.Second, 60, 5 * time.Millisecond // a killed one is forgotten then
		begun := 0
		for start := f.now; f.now.Before(start.Add(warm + seconds*time.Second)); f.now = f.now.Add(step) {
			if f.now.Equal(start.Add(warm)) {
				begun, f.asks = 0, 0
			}
			if f.now.Equal(start.Add(2*time.Second)) && c.members > 1 {
				all[0] = f.member() // the old one is killed
			}
			for _, m := range all {
				begun += f.turn(m, 16, func() time.Duration { return c.call })
			}
		}
		require.GreaterOrEqual(t, float64(begun)/seconds, c.least, "%+v", c)
		require.LessOrEqual(t, f.asks, 5*seconds*c.members, "%+v", c)
	}
}

// A ledger that answers slowly makes the calls slower, and does not stop them.
func TestASlowLedgerLeavesTokensToUse(t *testing.T) {
	t.Parallel()
	f, all := newFleet(ledger.Limits{PerSecond: 100}, 1)
	f.failed = func() bool { // the answer takes long
		f.now = f.now.Add(3 * rate.Life)
		return false
	}
	began := 0
	for range 100 {
		f.now = f.now.Add(10 * time.Millisecond)
		began += f.turn(all[0], 16, func() time.Duration { return time.Millisecond })
	}
	require.Greater(t, began, 10)
}

// With a short lease, slots are asked for again before they are too old to use.
func TestShortLeasesUseTheirSlots(t *testing.T) {
	t.Parallel()
	f, _ := newFleet(ledger.Limits{InFlight: 4}, 0)
	f.lease = 200 * time.Millisecond
	m, began := f.member(), 0
	for range 1000 { // ten seconds
		f.now = f.now.Add(10 * time.Millisecond)
		began += f.turn(m, 16, func() time.Duration { return 50 * time.Millisecond })
	}
	require.GreaterOrEqual(t, began, 4*20*10*8/10)
}

// Whatever an instance has asked for goes back when it runs nothing, also if it got nothing of it.
func TestWhatWasAskedForGoesBack(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]struct {
		permit ledger.Permit
		err    error
	}{
		"it got some":           {permit: ledger.Permit{Limits: ledger.Limits{InFlight: 2}, Slots: 2}},
		"others have all":       {permit: ledger.Permit{Limits: ledger.Limits{InFlight: 2}}},
		"the answer is lost":    {err: errors.New("the connection broke")},
		"the limit has changed": {permit: ledger.Permit{Limits: ledger.Limits{InFlight: 9}, Slots: 2}},
	} {
		m, now := limiter{lease: time.Second}, time.Now()
		_, _ = m.allow(ledger.Limits{InFlight: 2}, 4, 0, time.Now, func(ledger.Ask) (ledger.Permit, error) { return p.permit, p.err })
		_, _ = m.allow(ledger.Limits{}, 4, 0, time.Now, nil) // there is no limit any more
		require.True(t, m.idle(now.Add(time.Minute)), name)
		m.freed()
		require.False(t, m.idle(now.Add(time.Minute)), name)
	}
}

// While the ledger does not answer, nothing begins, also not with what was held before its time was over.
func TestNothingBeginsWhileTheLimitIsNotKnown(t *testing.T) {
	t.Parallel()
	f, all := newFleet(ledger.Limits{PerSecond: 100, InFlight: 10}, 1)
	short := func() time.Duration { return time.Millisecond }
	require.Positive(t, f.turn(all[0], 16, short))
	f.failed = func() bool { return true }
	f.now = f.now.Add(time.Minute)
	for range 100 {
		f.now = f.now.Add(50 * time.Millisecond)
		require.Zero(t, f.turn(all[0], 16, short))
	}
	f.failed = nil
	require.Positive(t, f.turn(all[0], 16, short))
}

// An instance that has settled nothing is ready all the same, if a limit holds the work up.
func TestALimitIsNoStall(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := &worker{name: "invoice"}
	w.measured.Store(&measurement{at: now, backlog: ledger.Backlog{Due: 1, OldestDue: time.Hour}})
	require.ErrorContains(t, w.check(now), "an effect has been due for 1h0m0s")
	w.limited.Store(now.Add(-time.Second).UnixNano())
	require.NoError(t, w.check(now))
}
