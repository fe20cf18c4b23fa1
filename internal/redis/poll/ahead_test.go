package poll_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Handlers have more messages than there are slots, and a drain ends their waits.
func TestHandlersPrepareMessagesAhead(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 100)
		cfg := r.config("c", 4)
		cfg.Ahead = 1 // the slots need more starts: half as many again
		rd, out := r.reader(s.Client(t), cfg, nil)
		var handled, calls, refused atomic.Int64
		var starts atomic.Pointer[slots.Slots]
		release := make(chan struct{})
		_ = redistest.Handle(t, out, func(m *message.Message) bool {
			handled.Add(1)
			slots := slots.From(m.Context())
			starts.Store(slots.Starts)
			if slots.Calls.Acquire(m.Context()) != nil {
				refused.Add(1)
				return true
			}
			defer slots.Calls.Release()
			calls.Add(1)
			<-release
			return true
		})
		done := sync.OnceFunc(func() { close(release) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return handled.Load() == 6 && calls.Load() == 4 }, patience, tick)
		takeAll := func() (n int) {
			for ; starts.Load().Free(); n++ {
				require.NoError(t, starts.Load().Acquire(t.Context()))
			}
			return n
		}
		require.Equal(t, 6, takeAll(), "starts")
		rd.Resize(6)
		require.Eventually(t, func() bool { return handled.Load() == 9 && calls.Load() == 6 }, patience, tick)
		require.Equal(t, 3, takeAll(), "further starts")
		unstarted := make(chan error, 1)
		go func() { unstarted <- starts.Load().Acquire(t.Context()) }()
		drained := make(chan error)
		go func() {
			// A quarter of it passes before the refusals.
			ctx, cancel := context.WithTimeout(context.Background(), 12*time.Second)
			defer cancel()
			drained <- rd.Drain(ctx)
		}()
		require.Eventually(t, func() bool { return refused.Load() == 3 }, patience, tick)
		require.ErrorIs(t, <-unstarted, slots.ErrNoMore)
		done()
		require.NoError(t, <-drained)
		require.EqualValues(t, 9, handled.Load())
		require.EqualValues(t, 6, calls.Load())
	})
}
