package once

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Calls that run at once meet the same trouble once, however many they are, and the next one waits no longer.
func TestCallsAtOnceAreOneTrouble(t *testing.T) {
	t.Parallel()
	const first = 250 * time.Millisecond
	start := time.Now()
	down := Answer{Class: Unclear, General: true}
	waits := func(tr *trouble, now time.Time) time.Duration {
		n, wait := tr.limit(64, now)
		require.Zero(t, n)
		return wait
	}
	one, many := &trouble{}, &trouble{}
	one.note(down, true, start)
	for range 64 {
		many.note(down, true, start)
	}
	require.Positive(t, waits(one, start))
	require.LessOrEqual(t, waits(many, start), first)
	require.Empty(t, one.reason(), "it does not last")
	require.NotEmpty(t, many.reason())

	later := start.Add(first)
	n, _ := many.limit(64, later)
	require.Equal(t, 1, n, "one call finds out whether it is over")
	many.note(down, true, later)
	require.Greater(t, waits(many, later), first)

	many.note(Answer{Class: Throttled, General: true, RetryAfter: time.Hour}, true, later)
	require.Equal(t, time.Hour, waits(many, later), "as long as it is asked to")
	many.again()
	n, _ = many.limit(64, later)
	require.Equal(t, 1, n, "its client would send a call")
	many.note(Answer{Class: Done}, true, later)
	n, _ = many.limit(64, later)
	require.Equal(t, 64, n)
}

// gated is a kind whose client says whether it would send a call.
type gated struct {
	caller
	open bool
}

func (g *gated) ready() bool                         { return g.open }
func (*gated) take(n int) (may int, _ time.Duration) { return n, 0 }
func (*gated) gated() bool                           { return true }

// A client that would send calls again is believed: the wait for its last trouble ends.
func TestAClientThatIsReadyAgainIsCalled(t *testing.T) {
	t.Parallel()
	g := &gated{open: true}
	w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 8}, g)
	now := time.Now()
	w.trouble.note(Answer{Class: NotSent, RetryAfter: time.Hour, General: true}, true, now)
	n, wait := w.free(now)
	require.Zero(t, n)
	require.Equal(t, time.Hour, wait)
	g.open = false
	n, wait = w.free(now)
	require.Zero(t, n)
	require.Equal(t, notReadyPause, wait)
	g.open = true
	n, _ = w.free(now)
	require.Equal(t, 1, n)
	w.trouble.note(Answer{Class: NotSent, RetryAfter: time.Hour, General: true}, true, now)
	n, _ = w.free(now)
	require.Zero(t, n, "it was ready all the time")
}

// A far side that carries an effect out works, also shortly after it throttled all calls.
func TestAnEffectThatIsDoneIsNoTrouble(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tr := &trouble{}
	tr.note(Answer{Class: NotSent, RetryAfter: time.Second, General: true}, true, now)
	tr.note(Answer{Class: Done, General: true}, true, now)
	n, _ := tr.limit(64, now)
	require.Equal(t, 64, n)
}

// A gate knows of the throttled answers of its kind. Without one, a general throttling makes all calls wait.
func TestAGateDecidesAfterThrottledAnswers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		kind caller
		free int
	}{"gate": {&gated{open: true}, 8}, "none": {done{}, 0}} {
		w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 8}, c.kind)
		w.learn(Answer{Class: Throttled, General: true, RetryAfter: time.Hour}, true, now)
		n, _ := w.free(now)
		require.Equal(t, c.free, n, name)
		w.learn(Answer{Class: Unclear, General: true}, true, now)
		n, _ = w.free(now)
		require.Zero(t, n, name)
	}
}

// One effect that can't be sent for a long time, such as one of a customer whose bank is closed, makes no other one wait that long.
func TestTheWaitOfOneEffectIsNotThatOfAll(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tr := &trouble{}
	tr.note(Answer{Class: NotSent, RetryAfter: time.Hour}, true, now)
	n, wait := tr.limit(64, now)
	require.Zero(t, n)
	require.LessOrEqual(t, wait, time.Second)
	n, _ = tr.limit(64, now.Add(time.Second))
	require.Equal(t, 1, n)
}

// A machine that was suspended between claim and call has a monotonic clock that stood still meanwhile.
func TestALeaseEndsByBothClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	lease := now.Add(time.Minute)
	require.Equal(t, time.Minute, timeLeft(lease, now, now.Round(0)))
	require.Equal(t, -59*time.Minute, timeLeft(lease, now, now.Round(0).Add(time.Hour)), "suspended for an hour")
	require.Equal(t, time.Minute, timeLeft(lease, now, now.Round(0).Add(-time.Hour)), "set back")
}
