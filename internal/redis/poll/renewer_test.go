package poll_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Promise 8: no other consumer receives the message of a slow handler.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel() // it is all waiting
		r := newRig(t, s)
		r.Add(0, 4)
		const minIdle = 9 * time.Second // a machine may stand still for half of it
		m := poll.NewMetrics()
		_, a := r.subscriber(s.Client(t), minIdle, 0, m)
		_, b := r.subscriber(s.Client(t), minIdle, 0, m)
		both := make(chan *message.Message)
		renewed := func() bool { return redistest.Metric(t, m, "heartbeats_total") > 8 } // each message more than twice
		idle := time.Now().Add(minIdle + minIdle/6)                                      // also of those that wait for the handlers
		h := redistest.Handle(t, both, func(*message.Message) bool {
			<-time.After(time.Until(idle))
			for end := time.Now().Add(patience); !renewed() && time.Now().Before(end); {
				<-time.After(tick) // fewer renewals are due while the machine stands still
			}
			return true
		})
		var pump sync.WaitGroup
		for _, out := range []<-chan *message.Message{a, b} {
			pump.Go(func() {
				for {
					select {
					case msg, ok := <-out:
						if !ok {
							return
						}
						both <- msg
					case <-h.Ended():
						return
					}
				}
			})
		}
		h.WaitFor(t, 4)
		r.NothingPending()
		require.Empty(t, h.Repeated())
		require.True(t, renewed())
		require.Zero(t, redistest.Metric(t, m, "reclaimed_total"))
	})
}

// After its longest hold another reader receives a message. The late ack of the first reader does
// not acknowledge it for the second.
func TestLongestHoldAndAckFencing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel() // it is all waiting
		r := newRig(t, s)
		r.Add(0, 1)
		const minIdle = 4 * time.Second // a machine may stand still for more than half of it
		ma := poll.NewMetrics()
		first, a := r.subscriber(s.Client(t), minIdle, 200*time.Millisecond, ma)
		stuck := redistest.Receive(t, a)
		_, b := r.subscriber(s.Client(t), minIdle, 0, nil)
		taken := redistest.Receive(t, b)
		require.Equal(t, stuck.UUID, taken.UUID)
		require.EqualValues(t, 2, pipeline.DeliveryFrom(taken.Context()).Delivered)

		require.NoError(t, stuck.Context().Err(), "a late handler is not cancelled")
		stuck.Ack()
		require.NoError(t, first.Close()) // flushes the late ack
		require.Len(t, r.Pending(), 1, "the late ack acknowledged the second reader's entry")
		taken.Ack()
		r.NothingPending()
	})
}

// Another consumer has claimed entries in flight and in the buffer. Neither the renewal nor the end
// claims them again.
func TestClaimedEntriesAreNotStolenBack(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 3)
		m := poll.NewMetrics()
		cfg := r.config("c", 1)
		cfg.MinIdle = 300 * time.Millisecond
		rd, out := r.reader(s.Client(t), cfg, m)
		inFlight := redistest.Receive(t, out)
		require.NoError(t, r.Client.XClaimJustID(t.Context(), &goredis.XClaimArgs{Stream: r.Stream, Group: group, Consumer: "other", Messages: ids[:2]}).Err())
		others := func() (n int) {
			for _, p := range r.Pending() {
				if p.Consumer == "other" {
					n++
				}
			}
			return n
		}
		require.Eventually(t, func() bool { return redistest.Metric(t, m, "lost_total") == 2 }, patience, tick)
		require.Equal(t, 2, others(), "stolen back by the heartbeat")
		inFlight.Ack()
		last := redistest.Receive(t, out)
		require.Equal(t, "2", string(last.Payload), "another consumer's entry must not be started")
		last.Ack()
		require.NoError(t, rd.Drain(t.Context()))
		require.Equal(t, 2, others(), "acknowledged for, or stolen from, its new owner")
		require.Len(t, r.Pending(), 2)
	})
}
