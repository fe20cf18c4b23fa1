package poll_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A consumer that comes back takes up at once what it had.
func TestOwnPendingEntriesAreTakenUpAtStart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 25)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Count: 23, Block: -1}).Result()
		require.NoError(t, err)
		rd, out := r.reader(s.Client(t), r.config("c", 4), nil)
		var wrong atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool {
			old := len(m.Payload) == 1 || string(m.Payload) < "23"
			if d := pipeline.OriginFrom(m.Context()).Delivered; old != (d == 2) {
				wrong.Add(1)
			}
			return true
		})
		h.WaitFor(t, 25)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, h.Repeated())
		require.Zero(t, wrong.Load(), "delivery counts")
		require.Empty(t, r.Pending())
	})
}

// A server that refuses for a while (it loads its data, it is a replica) is asked again for what an earlier life had.
func TestOwnPendingEntriesAreTakenUpWhenTheServerAnswers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 3)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.Client(t)
		log := redistest.Watch(c)
		var refused atomic.Int64
		log.Refuse(func(cmd goredis.Cmder) bool {
			return cmd.Name() == "xpending" && refused.Add(1) <= 2
		})
		_, out := r.reader(c, r.config("c", 4), nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, 3)
		r.NothingPending()
		require.Empty(t, h.Repeated())
	})
}

// The server has given entries to us, and the reply was lost: nobody else would look after them.
func TestLostReplyIsReadAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 40)
		c := s.Client(t)
		log := redistest.Watch(c)
		var reads atomic.Int64
		log.LoseReplies(func(cmd goredis.Cmder) bool {
			return cmd.Name() == "xreadgroup" && reads.Add(1)%3 == 0
		})
		cfg := r.config("c", 4)
		cfg.BatchSize = 5
		_, out := r.reader(c, cfg, nil)
		h := redistest.Handle(t, out, func(*message.Message) bool {
			<-time.After(5 * time.Millisecond) // something is in flight when the own entries are read again
			return true
		})
		h.WaitFor(t, 40)
		log.LoseReplies(nil)
		r.NothingPending()
		require.Empty(t, h.Repeated(), "run twice")
	})
}

// Looking for what a lost reply has left behind is no delivery: not of that, nor of what is in flight or was left pending.
func TestLookingAgainIsNoDelivery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		c := s.Client(t)
		log := redistest.Watch(c)
		cfg := r.config("c", 3)
		cfg.MaxRedeliveries = 0
		rd, out := r.reader(c, cfg, nil)
		r.Add(0, 1)
		inFlight := redistest.Receive(t, out)
		r.Add(1, 1)
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 1 }, patience, tick)
		var lose atomic.Bool
		log.LoseReplies(func(cmd goredis.Cmder) bool { return cmd.Name() == "xreadgroup" && lose.CompareAndSwap(true, false) })
		var m *message.Message
		for i := range 3 {
			if m != nil {
				m.Ack()
			}
			lose.Store(true)
			r.Add(2+i, 1)
			m = redistest.Receive(t, out)
			require.Equal(t, fmt.Sprint(2+i), string(m.Payload))
			require.False(t, lose.Load())
			require.EqualValues(t, 1, pipeline.OriginFrom(m.Context()).Delivered)
		}
		require.Eventually(t, func() bool { return len(r.Pending()) == 3 }, patience, tick)
		for _, p := range r.Pending() {
			require.EqualValues(t, 1, p.RetryCount)
		}
		inFlight.Ack()
		m.Ack()
	})
}

func TestLostAckReplyIsNoDelivery(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 20)
		c := s.Client(t)
		log := redistest.Watch(c)
		var acks atomic.Int64
		log.LoseReplies(func(cmd goredis.Cmder) bool { return cmd.Name() == "xack" && acks.Add(1) <= 3 })
		rd, out := r.reader(c, r.config("c", 4), nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, 20)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated())
		require.Greater(t, acks.Load(), int64(3))
	})
}

// What was left pending after its nacks must not come back through a re-read: that would be a loop.
func TestReReadLeavesAloneWhatWasLeftPending(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		c := s.Client(t)
		log := redistest.Watch(c)
		cfg := r.config("c", 2)
		cfg.MaxRedeliveries = 0
		var armed, lost atomic.Bool // asked for every reply, so also for one whose read began before armed was set
		log.LoseReplies(func(cmd goredis.Cmder) bool {
			return armed.Load() && cmd.Name() == "xreadgroup" && lost.CompareAndSwap(false, true)
		})
		rd, out := r.reader(c, cfg, nil)
		redistest.Receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		armed.Store(true)
		r.Add(1, 1)
		m := redistest.Receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		require.True(t, lost.Load())
		m.Ack()
		require.Eventually(t, func() bool { return rd.Stats().InFlight == 0 }, patience, tick)
		require.EqualValues(t, 2, rd.Stats().Read, "the entry that was left came in again")
		require.Len(t, r.Pending(), 1)
	})
}

func TestConnectionsCutUnderLoad(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		const n = 3000
		r.Add(0, n)
		p := redistest.NewProxy(t, s.Addr)
		cfg := r.config("c", 8)
		rd, out := r.reader(redistest.Server{Addr: p.Addr()}.Client(t), cfg, nil)
		var handled atomic.Int64
		h := redistest.Handle(t, out, func(*message.Message) bool {
			if handled.Add(1)%300 == 0 {
				p.Cut()
			}
			return true
		})
		h.WaitFor(t, n)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated(), "a reader that lives runs nothing twice")
	})
}

func TestServerAwayForAWhile(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		p := redistest.NewProxy(t, s.Addr)
		m := poll.NewMetrics()
		rd, out := r.reader(redistest.Server{Addr: p.Addr()}.Client(t), r.config("c", 2), m)
		h := redistest.Handle(t, out, nil)
		r.Add(0, 5)
		h.WaitFor(t, 5)
		p.SetDown(true)
		r.Add(5, 5)
		require.Eventually(t, func() bool { return redistest.Metric(t, m, "read_errors_total") > 0 }, patience, tick)
		require.Equal(t, 5, h.Handled())
		p.SetDown(false)
		h.WaitFor(t, 10)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Pending())
		require.Empty(t, h.Repeated())
	})
}

func TestDrainWithTheServerAwayIsBounded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		p := redistest.NewProxy(t, s.Addr)
		rd, out := r.reader(redistest.Server{Addr: p.Addr()}.Client(t), r.config("c", 2), nil)
		m := redistest.Receive(t, out)
		p.SetDown(true)
		m.Ack()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_ = rd.Drain(ctx) // an error or, when it was quick, none
		require.Less(t, time.Since(begin), 2*time.Second)
		select {
		case <-rd.Done():
		case <-time.After(patience):
			require.FailNow(t, "its goroutines never end")
		}
	})
}

func TestAbsentStream(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Run("is made again and read from its beginning", func(t *testing.T) {
			r := newRig(t, s)
			var asked atomic.Int64
			o := r.config("c", 2)
			o.Absent = func(ctx context.Context) (bool, error) {
				if asked.Add(1) == 1 {
					return false, errors.New("the owner has no answer yet")
				}
				return true, r.Client.XGroupCreateMkStream(ctx, r.Stream, group, "0").Err()
			}
			_, out := r.reader(s.Client(t), o, nil)
			h := redistest.Handle(t, out, nil)
			r.Add(0, 1)
			h.WaitFor(t, 1)
			require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
			// Without its group, as a producer would make it again.
			require.NoError(t, r.Client.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.Stream, Values: entry.Entry{Message: []byte("after")}.Values()}).Err())
			h.WaitFor(t, 2)
			require.EqualValues(t, 2, asked.Load())
			r.NothingPending()
		})
		t.Run("stops quietly when it is not wanted", func(t *testing.T) {
			r := newRig(t, s)
			r.Add(0, 3)
			cfg := r.config("c", 1)
			cfg.Absent = func(context.Context) (bool, error) { return false, nil }
			rd, out := r.reader(s.Client(t), cfg, nil)
			inFlight := redistest.Receive(t, out)
			require.Eventually(t, func() bool { return rd.Stats().Buffered == 2 }, patience, tick)
			require.NoError(t, r.Client.Del(t.Context(), r.Stream).Err())
			inFlight.Ack() // its slot is free now: the reader takes what is buffered, and reads again
			for range 2 {
				select {
				case m := <-out:
					m.Ack()
				case <-rd.Done():
				}
			}
			select {
			case <-rd.Done():
			case <-time.After(patience):
				require.FailNow(t, "it does not stop")
			}
			require.Zero(t, rd.Stats().InFlight)
			n, err := r.Client.Exists(t.Context(), r.Stream).Result()
			require.NoError(t, err)
			require.Zero(t, n, "the stream must not come back")
			require.NoError(t, rd.Drain(t.Context()))
		})
	})
}

// A group that was made again at 0 gives out again what is in flight: it must not run twice.
func TestRecreatedGroupDoesNotRunTwiceWhatIsInFlight(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		o := r.config("c", 2)
		o.Absent = func(ctx context.Context) (bool, error) {
			return true, r.Client.XGroupCreateMkStream(ctx, r.Stream, group, "0").Err()
		}
		_, out := r.reader(s.Client(t), o, nil)
		inFlight := redistest.Receive(t, out)
		require.NoError(t, r.Client.XGroupDestroy(t.Context(), r.Stream, group).Err())
		require.Eventually(t, func() bool {
			p, err := r.Client.XPending(t.Context(), r.Stream, group).Result()
			return err == nil && p.Count == 1
		}, patience, tick, "the new group must have given it out")
		r.Add(1, 1)
		m := redistest.Receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		m.Ack()
		inFlight.Ack()
		r.NothingPending()
	})
}

func TestGhostsAreCountedAndCleared(t *testing.T) {
	// miniredis hides deleted entries from the lists of what is pending.
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 3)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		require.NoError(t, r.Client.XDel(t.Context(), r.Stream, ids[1]).Err())
		m := poll.NewMetrics()
		_, out := r.reader(s.Client(t), r.config("c", 1), m)
		require.Equal(t, "0", string(redistest.ReceiveAck(t, out).Payload))
		require.Equal(t, "2", string(redistest.ReceiveAck(t, out).Payload))
		r.NothingPending()
		require.EqualValues(t, 1, redistest.Metric(t, m, "deleted_pending_total"))
	})
}

func TestAdopt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 4)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.Client(t)
		log := redistest.Watch(c)
		rd, out := r.reader(c, r.config("c", 2), nil)
		// The look at own pending entries at the start would take up what is claimed before it.
		require.Eventually(t, func() bool { return log.Count("xreadgroup") > 1 }, patience, tick)
		claim := func(ids ...string) []goredis.XMessage {
			ms, err := r.Client.XClaim(t.Context(), &goredis.XClaimArgs{Stream: r.Stream, Group: group, Consumer: "c", Messages: ids}).Result()
			require.NoError(t, err)
			return ms
		}
		var acked atomic.Int64
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[:3]...), map[string]int64{ids[0]: 7}, func() { acked.Add(1) }))
		first := redistest.Receive(t, out)
		second := redistest.Receive(t, out)
		if string(first.Payload) != "0" {
			first, second = second, first
		}
		require.EqualValues(t, 7, pipeline.OriginFrom(first.Context()).Delivered)
		require.EqualValues(t, 1, pipeline.OriginFrom(second.Context()).Delivered)
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[0]), nil, func() { acked.Add(1) }), "what is in flight is not run twice")
		first.Ack()
		second.Ack()
		require.Equal(t, "2", string(redistest.ReceiveAck(t, out).Payload))
		require.NoError(t, rd.Drain(t.Context()))
		require.EqualValues(t, 3, acked.Load(), "once each")

		require.ErrorIs(t, rd.Adopt(t.Context(), claim(ids[3]), nil, nil), poll.ErrStopped)
		p, err := r.Client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: r.Stream, Group: group, Idle: time.Minute, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		require.Len(t, p, 1, "a stopped reader releases what it is offered")
	})
}

func TestSubscriberReclaimsFromTheDead(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 35)
		_, err := r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.Stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		m := poll.NewMetrics()
		_, out := r.subscriber(s.Client(t), 50*time.Millisecond, 0, m)
		var wrong atomic.Int64
		h := redistest.Handle(t, out, func(m *message.Message) bool {
			if pipeline.OriginFrom(m.Context()).Delivered != 2 {
				wrong.Add(1)
			}
			return true
		})
		h.WaitFor(t, 35)
		require.Empty(t, h.Repeated())
		require.Zero(t, wrong.Load())
		require.EqualValues(t, 35, redistest.Metric(t, m, "reclaimed_total"))
		require.Eventually(t, func() bool { return len(r.Consumers()) == 1 }, patience, tick, "the dead consumer stays: %s", fmt.Sprint(r.Consumers()))
	})
}
