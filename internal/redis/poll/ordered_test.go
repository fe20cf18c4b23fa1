package poll_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// receive returns the payloads of the next n messages, which stay in flight.
func receive(t *testing.T, out <-chan *message.Message, n int) (payloads []string, msgs []*message.Message) {
	t.Helper()
	for range n {
		m := redistest.Receive(t, out)
		payloads, msgs = append(payloads, string(m.Payload)), append(msgs, m)
	}
	return payloads, msgs
}

// numbers returns the payloads from first to before.
func numbers(first, before int) (all []string) {
	for n := first; n < before; n++ {
		all = append(all, fmt.Sprint(n))
	}
	return all
}

func TestOrderedEntriesLeaveInTheOrderOfReading(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		const n = 2000
		r.Add(0, n)
		o := r.config("me-0", 50)
		o.Ordered = true
		_, out := r.reader(s.Client(t), o, nil)
		got, msgs := receive(t, out, 50) // many are in flight
		for _, m := range msgs {
			go m.Ack()
		}
		for range n - 50 {
			m := redistest.Receive(t, out)
			got = append(got, string(m.Payload))
			go m.Ack()
		}
		require.Equal(t, numbers(0, n), got)
		r.NothingPending()
	})
}

// Entries that must be looked up again are not overtaken by those after them.
func TestOrderedEntriesBehindTheFence(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		var fence atomic.Int64
		o := r.config("me-0", 1)
		o.Ordered, o.BatchSize, o.MinIdle = true, 2, time.Hour
		o.Fence = func() time.Time { return time.Unix(0, fence.Load()) }
		r.Add(0, 3) // before the first read, which then has two of them
		rd, out := r.reader(s.Client(t), o, nil)
		first := redistest.Receive(t, out)
		require.Eventually(t, func() bool { return rd.Stats().Buffered == 1 }, patience, tick)
		fence.Store(time.Now().UnixNano())
		rd.Resize(8)
		r.Add(3, 20)
		got, msgs := receive(t, out, 7)
		require.Equal(t, numbers(1, 8), got)
		for _, m := range append(msgs, first) {
			m.Ack()
		}
		got, msgs = receive(t, out, 8)
		require.Equal(t, numbers(8, 16), got)
		for _, m := range msgs {
			m.Ack()
		}
	})
}

// Entries that are nacked under a closed gate, or refused because of the gate or the fence, take
// their places again. Nothing leaves the reader meanwhile. Only a handler's nack counts.
func TestOrderedEntriesTakeTheirPlaceAgain(t *testing.T) {
	t.Parallel()
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fenced ", fenced), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s redistest.Server) {
				r := newRig(t, s)
				var closed atomic.Bool
				var asked atomic.Int64
				o := r.config("me-0", 20)
				o.Ordered, o.MaxRedeliveries = true, 1
				o.Gate = func() bool { asked.Add(1); return fenced || !closed.Load() }
				o.Fence = func() time.Time {
					asked.Add(1)
					if fenced && closed.Load() {
						return time.Now().Add(time.Hour)
					}
					return time.Time{}
				}
				rd, out := r.reader(s.Client(t), o, nil)
				r.Add(0, 60)
				first, msgs := receive(t, out, 10)
				require.Equal(t, numbers(0, 10), first)
				require.Eventually(t, func() bool { return rd.Stats().InFlight > 10 }, patience, tick, "one is offered, and some are buffered")
				closed.Store(true)
				for n, m := range msgs {
					if n%2 == 1 || fenced {
						require.False(t, pipeline.DeliveryFrom(m.Context()).MayStart())
					}
				}
				for _, n := range []int{3, 9, 0, 7, 1, 8, 2, 6, 5, 4} {
					msgs[n].Nack()
				}
				require.Eventually(t, func() bool { s := rd.Stats(); return s.Buffered == s.InFlight }, patience, tick, "all are back")
				seen := asked.Load()
				require.Eventually(t, func() bool { return asked.Load() > seen+3 }, patience, tick)
				select {
				case m := <-out:
					require.FailNow(t, "delivered while it was closed", string(m.Payload))
				default:
				}
				closed.Store(false)
				again, msgs := receive(t, out, 20)
				require.Equal(t, numbers(0, 20), again)
				for n, m := range msgs {
					o := pipeline.DeliveryFrom(m.Context())
					started := n < 10 && n%2 == 0 && !fenced
					require.Equal(t, started, o.Delivered == 2, "%d", n)
					require.Equal(t, started, o.Excused == 1, "%d", n)
					m.Ack()
				}
				rest, msgs := receive(t, out, 20)
				require.Equal(t, numbers(20, 40), rest)
				for _, m := range msgs {
					m.Ack()
				}
			})
		})
	}
}

// A reader that takes over starts with all entries that other consumers and an earlier process have
// left, however short they have been pending.
func TestTakeOver(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 60)
		for n, consumer := range []string{"a-0", "b-0", "me-0", "a-0", "b-0"} {
			require.NoError(t, r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{
				Group: group, Consumer: consumer, Streams: []string{r.Stream, ">"}, Count: int64(6 + n), Block: -1,
			}).Err())
		}
		o := r.config("me-0", 100)
		o.Ordered, o.TakeOver = true, true
		metrics := poll.NewMetrics()
		_, out := r.reader(s.Client(t), o, metrics)
		got, msgs := receive(t, out, 60)
		require.Equal(t, numbers(0, 60), got)
		for n, m := range msgs {
			want := int64(1)
			if n < 40 {
				want = 2
			}
			require.Equal(t, want, pipeline.DeliveryFrom(m.Context()).Delivered)
			m.Ack()
		}
		r.NothingPending()
		require.Eventually(t, func() bool { return slices.Equal(r.Consumers(), []string{"me-0"}) }, patience, tick, "empty consumers are removed")
		require.EqualValues(t, 40-8, redistest.Metric(t, metrics, "adopted_total"), "those of me-0 are its own")
	})
}

// While the gate is closed, nothing that was nacked is delivered again, and no nack counts.
func TestAClosedGateHoldsRedeliveries(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 4} {
		t.Run(fmt.Sprint("concurrency ", concurrency), func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s redistest.Server) {
				r := newRig(t, s)
				var open atomic.Bool
				var asked atomic.Int64
				open.Store(true)
				o := r.config("me-0", concurrency)
				o.MaxRedeliveries = 1
				o.Gate = func() bool { asked.Add(1); return open.Load() }
				_, out := r.reader(s.Client(t), o, nil)
				r.Add(0, 1)
				for n := range 3 { // more than MaxRedeliveries
					m := redistest.Receive(t, out)
					o := pipeline.DeliveryFrom(m.Context())
					require.EqualValues(t, n+1, o.Delivered)
					require.EqualValues(t, n, o.Excused)
					open.Store(false)
					m.Nack()
					seen := asked.Load()
					require.Eventually(t, func() bool { return asked.Load() > seen+3 }, patience, tick)
					select {
					case <-out:
						require.FailNow(t, "delivered while the gate is closed")
					default:
					}
					open.Store(true)
				}
				m := redistest.Receive(t, out)
				m.Nack()
				m = redistest.Receive(t, out)
				require.EqualValues(t, 5, pipeline.DeliveryFrom(m.Context()).Delivered)
				m.Nack()
				require.Eventually(t, func() bool {
					p := r.Pending()
					return len(p) == 1 && p[0].RetryCount == 2
				}, patience, tick, "the nacks with an open gate count")
				select {
				case <-out:
					require.FailNow(t, "delivered more often than MaxRedeliveries")
				default:
				}
			})
		})
	}
}
