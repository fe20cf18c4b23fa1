package poll_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Streams that are refused, gone, or whose owner does not answer do not delay the others of their
// Scheduler.
func TestOneStreamDoesNotStopTheOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		scheduler, c := &poll.Scheduler{}, s.Client(t)
		o := func(r *rig) poll.Options {
			o := r.config("c", 4)
			o.Scheduler = scheduler
			return o
		}
		refused, slow, gone, good := newRig(t, s), newRig(t, s), newRig(t, s), newRig(t, s)
		require.NoError(t, c.Del(t.Context(), refused.Stream, slow.Stream, gone.Stream).Err())
		require.NoError(t, c.Set(t.Context(), refused.Stream, "x", 0).Err())
		_, _ = refused.reader(c, o(refused), nil)
		asked := make(chan struct{}, 1)
		waits := o(slow)
		answer := make(chan struct{})
		waits.Absent = func(context.Context) (bool, error) {
			asked <- struct{}{}
			<-answer
			return false, nil
		}
		_, _ = slow.reader(c, waits, nil)
		t.Cleanup(func() { close(answer) })
		fails := o(gone)
		fails.Absent = func(context.Context) (bool, error) { return false, errors.New("not now") }
		_, _ = gone.reader(c, fails, nil)
		_, out := good.reader(c, o(good), nil)
		h := redistest.Handle(t, out, nil)
		<-asked
		good.Add(0, 10)
		h.WaitFor(t, 10)
		good.Add(10, 10)
		h.WaitFor(t, 20)
	})
}

// Each reader of a Scheduler gets its entries, also when there are more than fit into one pipeline.
// While nothing is in flight there are no goroutines.
func TestASchedulerReadsManyStreams(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		const n = 250
		scheduler, c := &poll.Scheduler{}, s.Client(t)
		out := make(chan *message.Message)
		h := redistest.Handle(t, out, nil)
		rigs := make([]*rig, n)
		for i := range rigs {
			rigs[i] = newRig(t, redistest.Server{Name: s.Name, Addr: s.Addr})
		}
		before := runtime.NumGoroutine()
		readers := make([]*poll.Reader, n)
		for i, r := range rigs {
			o := r.config("c", 8)
			o.Scheduler, o.PollInterval = scheduler, 200*time.Millisecond
			readers[i] = poll.NewReader(c, o, out, redistest.Logger(t), nil)
			readers[i].Start()
		}
		for i, r := range rigs {
			r.Add(i, 1)
		}
		h.WaitFor(t, n)
		require.Empty(t, h.Repeated())
		require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+n/2 }, patience, tick, "idle readers have goroutines")
		for i, r := range rigs {
			r.Add(n+i, 1)
			if i%2 == 0 {
				readers[i].Wake()
			}
		}
		h.WaitFor(t, 2*n)
		for _, rd := range readers {
			require.NoError(t, rd.Drain(t.Context()))
		}
	})
}
