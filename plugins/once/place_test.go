package once

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// done is a kind whose calls are answered at once.
type done struct{ caller }

func (done) call(context.Context, ledger.Claimed) (Answer, bool) { return Answer{Class: Done}, true }
func (done) ready() bool                                         { return true }
func (done) gated() bool                                         { return false }
func (done) take(n int) (may int, _ time.Duration)               { return n, 0 }

// The place of a call is free when it is answered, also while the ledger does not take the answer. But only
// so many answers may wait, because a kill loses them.
func TestAPlaceIsFreeBeforeTheAnswerIsStored(t *testing.T) {
	t.Parallel()
	w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 1, CallTimeout: time.Minute, LeaseMargin: time.Minute}, done{})
	w.log, w.life, w.settles.queue = slog.New(slog.DiscardHandler), t.Context(), make(chan *settling)
	w.calling.Store(1)
	w.inFlight.Store(1)
	n, _ := w.free(time.Now())
	require.Zero(t, n)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.handle(ledger.Claimed{}, time.Now(), func() { w.calling.Add(-1) })
	}()
	answer := <-w.settles.queue // it waits for the ledger
	n, _ = w.free(time.Now())
	require.Equal(t, 1, n)
	w.inFlight.Store(unstored)
	n, _ = w.free(time.Now())
	require.Zero(t, n)
	close(answer.done)
	<-ended
}

// Effects that are claimed too late to be called for, again and again, are no sign that the kind works.
func TestALeaseThatIsTooShortIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	w := newWorker(NewPlugin(nil, nil), "invoice", &KindConfig{Concurrency: 1, CallTimeout: time.Minute, LeaseMargin: time.Minute}, done{})
	w.log, w.life, w.settles.queue = slog.New(slog.DiscardHandler), t.Context(), make(chan *settling)
	handle := func(claimed time.Time) rules.Outcome {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.handle(ledger.Claimed{}, claimed, func() {})
		}()
		answer := <-w.settles.queue
		close(answer.done)
		<-ended
		return answer.end.Outcome
	}
	require.Equal(t, rules.Interrupted, handle(time.Now().Add(-time.Hour)))
	require.Zero(t, w.lastSettled.Load())
	require.Equal(t, rules.Done, handle(time.Now()))
	require.NotZero(t, w.lastSettled.Load())

	c := DefaultKind("invoice")
	require.NoError(t, c.Validate())
	c.LeaseMargin = time.Millisecond
	require.ErrorContains(t, c.Validate(), "lease_margin: must be >= 500ms, because a claim takes some of it and then nothing would be called, got 1ms")
}

// Only a far side with keys can be promised that the same key does nothing twice.
func TestExplainPromisesNoKeyToAFarSideWithoutKeys(t *testing.T) {
	t.Parallel()
	says := func(r rules.Repeat) string {
		return nextOf(ledger.Explanation{Row: rules.Row{State: rules.Ambiguous, MaybeDone: true}, Registered: true, Repeat: r, NextCall: rules.Send, NextCallIn: time.Minute}, ledger.Held{})
	}
	require.Contains(t, says(rules.ByKey), "sent again, with the same key and the same bytes")
	require.Contains(t, says(rules.Always), "sent again, so it may be done twice")
}
