package once

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// An idle instance sends no statement about itself: it has no ledger here. What it says otherwise depends on the reason.
func TestAnIdleInstanceSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 8}, done{})
	w.recent.start(time.Now())
	w.begun.Store(true)
	for _, b := range []ledger.Backlog{{}, {Waiting: 10, Failed: 3, Unknown: 1}, {Waiting: 10, Paused: &ledger.KindPause{}}} {
		w.measured.Store(&measurement{backlog: b})
		w.tellActivity(t.Context(), nil)
		require.False(t, w.told)
	}
	w.measured.Store(&measurement{backlog: ledger.Backlog{Due: 1}})
	w.bounds.wait(limitPerSecond, time.Now().Add(-time.Second))
	a := w.activity(time.Now())
	require.Equal(t, limitPerSecond, a.Bound, "it waits for a limit that lets a call begin now and then")
	require.Equal(t, 8, a.Concurrency)
	settle(&w.recent, "acme", 1, time.Now())
	w.measured.Store(&measurement{backlog: ledger.Backlog{Paused: &ledger.KindPause{}}})
	require.Equal(t, boundPaused, w.activity(time.Now()).Bound, "it has settled an effect a moment ago")
	down := Answer{Class: Unclear, General: true}
	w.trouble.note(down, true, time.Now())
	w.trouble.note(down, true, time.Now())
	require.Equal(t, boundStopped, w.activity(time.Now()).Bound)
	require.NotEmpty(t, w.activity(time.Now()).Reason)
}

// A place is missing for different reasons.
func TestWhatAnInstanceWithoutAFreePlaceWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 8}, &gated{open: true})
	w.calling.Store(8)
	require.Equal(t, boundConcurrency, w.boundOfFull())
	w.calling.Store(3)
	require.Equal(t, boundLedger, w.boundOfFull(), "the answers of the others are not stored")
	w.notReady = true
	require.Equal(t, boundStopped, w.boundOfFull())
	w.notReady = false
	w.trouble.note(Answer{Class: NotSent}, true, time.Now())
	require.Equal(t, boundStopped, w.boundOfFull())
}
