package poll_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestResize(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 20)
		rd, out := r.reader(s.Client(t), r.config("c", 2), nil)
		var inFlight atomic.Int64
		step := make(chan struct{})
		h := redistest.Handle(t, out, func(*message.Message) bool {
			inFlight.Add(1)
			<-step
			inFlight.Add(-1)
			return true
		})
		done := sync.OnceFunc(func() { close(step) })
		t.Cleanup(done) // also when something below fails
		require.Eventually(t, func() bool { return inFlight.Load() == 2 }, patience, tick)
		rd.Resize(6)
		require.Eventually(t, func() bool { return inFlight.Load() == 6 }, patience, tick)
		rd.Resize(1)
		for range 6 {
			step <- struct{}{}
		}
		require.Eventually(t, func() bool { return inFlight.Load() == 1 }, patience, tick)
		require.Never(t, func() bool { return inFlight.Load() > 1 }, 100*time.Millisecond, tick, "five slots should have ended")
		rd.Resize(3)
		done()
		h.WaitFor(t, 20)
		require.Empty(t, h.Repeated())
		require.Equal(t, 3, rd.Stats().Concurrency)
	})
}

func TestNackedEntryIsDeliveredAgainThenLeftPending(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, slots := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
				r := newRig(t, s)
				ids := r.Add(0, 3)
				cfg := r.config("c", slots)
				cfg.MaxRedeliveries = 2
				_, out := r.reader(s.Client(t), cfg, nil)
				var mu sync.Mutex
				var delivered []int64
				h := redistest.Handle(t, out, func(m *message.Message) bool {
					if string(m.Payload) != "0" {
						return true
					}
					mu.Lock()
					defer mu.Unlock()
					delivered = append(delivered, pipeline.DeliveryFrom(m.Context()).Delivered)
					return false
				})
				h.WaitFor(t, 3)
				require.Eventually(t, func() bool { p := r.Pending(); return len(p) == 1 && p[0].ID == ids[0] }, patience, tick)
				require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(delivered) == 3 }, patience, tick)
				require.Never(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(delivered) > 3 }, 100*time.Millisecond, tick)
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, []int64{1, 2, 3}, delivered)
			})
		}
	})
}

// With one slot nothing overtakes a message that is tried again.
func TestOneWorkerKeepsOrderOverNacks(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 4)
		_, out := r.reader(s.Client(t), r.config("c", 1), nil)
		var order []string
		for range 6 {
			m := redistest.Receive(t, out)
			order = append(order, string(m.Payload))
			if string(m.Payload) == "1" && len(order) < 4 {
				m.Nack()
			} else {
				m.Ack()
			}
		}
		require.Equal(t, []string{"0", "1", "1", "1", "2", "3"}, order)
	})
}

func TestPoisonIsIsolated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		require.NoError(t, r.Client.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.Stream, Values: []any{"foo", "bar"}}).Err())
		r.Add(1, 1)
		_, out := r.reader(s.Client(t), r.config("c", 1), nil)
		first, poison, last := redistest.ReceiveAck(t, out), redistest.ReceiveAck(t, out), redistest.ReceiveAck(t, out)
		require.NoError(t, entry.Malformed(first))
		require.Equal(t, "1", string(last.Payload))
		err := entry.Malformed(poison)
		require.Equal(t, err, pipeline.DeliveryFrom(poison.Context()).Malformed)
		require.True(t, pipeline.IsPermanent(err))
		require.Equal(t, "missing_message", pipeline.Class(err))
		require.Empty(t, poison.Payload)
		require.JSONEq(t, `{"foo":"bar"}`, poison.Metadata.Get(entry.MetaRawFields))
		r.NothingPending()
	})
}
