package redispoll_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// A consumer that comes back takes up at once what it had.
func TestOwnPendingEntriesAreTakenUpAtStart(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 25)
		_, err := r.admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.stream, ">"}, Count: 23, Block: -1}).Result()
		require.NoError(t, err)
		rd, out := r.reader(s.client(t), r.config("c", 4), redispoll.Hooks{}, nil)
		var wrong atomic.Int64
		h := handle(t, out, func(m *message.Message) bool {
			old := len(m.Payload) == 1 || string(m.Payload) < "23"
			if d := pipeline.OriginFrom(m.Context()).Delivered; old != (d == 2) {
				wrong.Add(1)
			}
			return true
		})
		h.waitFor(t, 25)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, h.repeated())
		require.Zero(t, wrong.Load(), "delivery counts")
		require.Empty(t, r.pending())
	})
}

// A server that refuses for a while (it loads its data, it is a replica) is asked again for what an earlier life had.
func TestOwnPendingEntriesAreTakenUpWhenTheServerAnswers(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 3)
		_, err := r.admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.client(t)
		log := watch(c)
		var refused atomic.Int64
		log.refuse(func(cmd redis.Cmder) bool {
			return cmd.Name() == "xpending" && refused.Add(1) <= 2
		})
		_, out := r.reader(c, r.config("c", 4), redispoll.Hooks{}, nil)
		h := handle(t, out, nil)
		h.waitFor(t, 3)
		r.nothingPending()
		require.Empty(t, h.repeated())
	})
}

// The server has given entries to us, and the reply was lost: nobody else would look after them.
func TestLostReplyIsReadAgain(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 40)
		c := s.client(t)
		log := watch(c)
		var reads atomic.Int64
		log.loseReplies(func(cmd redis.Cmder) bool {
			return cmd.Name() == "xreadgroup" && reads.Add(1)%3 == 0
		})
		cfg := r.config("c", 4)
		cfg.Batch = 5
		_, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		h := handle(t, out, func(*message.Message) bool {
			<-time.After(5 * time.Millisecond) // something is in hand when the own entries are read again
			return true
		})
		h.waitFor(t, 40)
		log.loseReplies(nil)
		r.nothingPending()
		require.Empty(t, h.repeated(), "run twice")
	})
}

// Looking for what a lost reply has left behind is no delivery: not of that, nor of what is in hand or was left pending.
func TestLookingAgainIsNoDelivery(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		c := s.client(t)
		log := watch(c)
		cfg := r.config("c", 3)
		cfg.MaxRedeliveries = 0
		rd, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		r.add(0, 1)
		inHand := receive(t, out)
		r.add(1, 1)
		receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InHand == 1 }, patience, tick)
		var lose atomic.Bool
		log.loseReplies(func(cmd redis.Cmder) bool { return cmd.Name() == "xreadgroup" && lose.CompareAndSwap(true, false) })
		var m *message.Message
		for i := range 3 {
			if m != nil {
				m.Ack()
			}
			lose.Store(true)
			r.add(2+i, 1)
			m = receive(t, out)
			require.Equal(t, fmt.Sprint(2+i), string(m.Payload))
			require.False(t, lose.Load())
			require.EqualValues(t, 1, pipeline.OriginFrom(m.Context()).Delivered)
		}
		require.Eventually(t, func() bool { return len(r.pending()) == 3 }, patience, tick)
		for _, p := range r.pending() {
			require.EqualValues(t, 1, p.RetryCount)
		}
		inHand.Ack()
		m.Ack()
	})
}

func TestLostAckReplyIsNoDelivery(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 20)
		c := s.client(t)
		log := watch(c)
		var acks atomic.Int64
		log.loseReplies(func(cmd redis.Cmder) bool { return cmd.Name() == "xack" && acks.Add(1) <= 3 })
		rd, out := r.reader(c, r.config("c", 4), redispoll.Hooks{}, nil)
		h := handle(t, out, nil)
		h.waitFor(t, 20)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.pending())
		require.Empty(t, h.repeated())
		require.Greater(t, acks.Load(), int64(3))
	})
}

// What was left pending after its nacks must not come back through a re-read: that would be a loop.
func TestReReadLeavesAloneWhatWasLeftPending(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		c := s.client(t)
		log := watch(c)
		cfg := r.config("c", 2)
		cfg.MaxRedeliveries = 0
		var armed, lost atomic.Bool // asked for every reply, so also for one whose read began before armed was set
		log.loseReplies(func(cmd redis.Cmder) bool {
			return armed.Load() && cmd.Name() == "xreadgroup" && lost.CompareAndSwap(false, true)
		})
		rd, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		armed.Store(true)
		r.add(1, 1)
		m := receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		require.True(t, lost.Load())
		m.Ack()
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		require.EqualValues(t, 2, rd.Stats().Read, "the entry that was left came in again")
		require.Len(t, r.pending(), 1)
	})
}

func TestConnectionsCutUnderLoad(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		const n = 3000
		r.add(0, n)
		p := newProxy(t, s.addr)
		cfg := r.config("c", 8)
		rd, out := r.reader(server{addr: p.addr()}.client(t), cfg, redispoll.Hooks{}, nil)
		var handled atomic.Int64
		h := handle(t, out, func(*message.Message) bool {
			if handled.Add(1)%300 == 0 {
				p.cut()
			}
			return true
		})
		h.waitFor(t, n)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.pending())
		require.Empty(t, h.repeated(), "a reader that lives runs nothing twice")
	})
}

func TestServerAwayForAWhile(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		p := newProxy(t, s.addr)
		m := redispoll.NewMetrics()
		rd, out := r.reader(server{addr: p.addr()}.client(t), r.config("c", 2), redispoll.Hooks{}, m)
		h := handle(t, out, nil)
		r.add(0, 5)
		h.waitFor(t, 5)
		p.setDown(true)
		r.add(5, 5)
		require.Eventually(t, func() bool { return metric(t, m, "read_errors_total") > 0 }, patience, tick)
		require.Equal(t, 5, h.handled())
		p.setDown(false)
		h.waitFor(t, 10)
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.pending())
		require.Empty(t, h.repeated())
	})
}

func TestDrainWithTheServerAwayIsBounded(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		p := newProxy(t, s.addr)
		rd, out := r.reader(server{addr: p.addr()}.client(t), r.config("c", 2), redispoll.Hooks{}, nil)
		m := receive(t, out)
		p.setDown(true)
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
	onServers(t, func(t *testing.T, s server) {
		t.Run("is made again and read from its beginning", func(t *testing.T) {
			r := newRig(t, s)
			var asked atomic.Int64
			_, out := r.reader(s.client(t), r.config("c", 2), redispoll.Hooks{Absent: func(ctx context.Context) (bool, error) {
				if asked.Add(1) == 1 {
					return false, errors.New("the owner has no answer yet")
				}
				return true, r.admin.XGroupCreateMkStream(ctx, r.stream, group, "0").Err()
			}}, nil)
			h := handle(t, out, nil)
			r.add(0, 1)
			h.waitFor(t, 1)
			require.NoError(t, r.admin.Del(t.Context(), r.stream).Err())
			// Without its group, as a producer would make it again.
			require.NoError(t, r.admin.XAdd(t.Context(), &redis.XAddArgs{Stream: r.stream, Values: redispoll.Entry{Message: []byte("after")}.Values()}).Err())
			h.waitFor(t, 2)
			require.EqualValues(t, 2, asked.Load())
			r.nothingPending()
		})
		t.Run("stops quietly when it is not wanted", func(t *testing.T) {
			r := newRig(t, s)
			r.add(0, 3)
			cfg := r.config("c", 1)
			rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{Absent: func(context.Context) (bool, error) { return false, nil }}, nil)
			inHand := receive(t, out)
			require.Eventually(t, func() bool { return rd.Stats().Buffered == 2 }, patience, tick)
			require.NoError(t, r.admin.Del(t.Context(), r.stream).Err())
			inHand.Ack() // its slot is free now: the reader takes what is buffered, and reads again
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
			require.Zero(t, rd.Stats().InHand)
			n, err := r.admin.Exists(t.Context(), r.stream).Result()
			require.NoError(t, err)
			require.Zero(t, n, "the stream must not come back")
			require.NoError(t, rd.Drain(t.Context()))
		})
	})
}

// A group that was made anew at 0 gives out again what is in hand: it must not run twice.
func TestRecreatedGroupDoesNotRunTwiceWhatIsInHand(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		_, out := r.reader(s.client(t), r.config("c", 2), redispoll.Hooks{Absent: func(ctx context.Context) (bool, error) {
			return true, r.admin.XGroupCreateMkStream(ctx, r.stream, group, "0").Err()
		}}, nil)
		inHand := receive(t, out)
		require.NoError(t, r.admin.XGroupDestroy(t.Context(), r.stream, group).Err())
		require.Eventually(t, func() bool {
			p, err := r.admin.XPending(t.Context(), r.stream, group).Result()
			return err == nil && p.Count == 1
		}, patience, tick, "the new group must have given it out")
		r.add(1, 1)
		m := receive(t, out)
		require.Equal(t, "1", string(m.Payload))
		m.Ack()
		inHand.Ack()
		r.nothingPending()
	})
}

func TestGhostsAreCountedAndCleared(t *testing.T) {
	// miniredis hides deleted entries from the lists of what is pending.
	onRealServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 3)
		_, err := r.admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{r.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		require.NoError(t, r.admin.XDel(t.Context(), r.stream, ids[1]).Err())
		m := redispoll.NewMetrics()
		_, out := r.reader(s.client(t), r.config("c", 1), redispoll.Hooks{}, m)
		require.Equal(t, "0", string(receiveAck(t, out).Payload))
		require.Equal(t, "2", string(receiveAck(t, out).Payload))
		r.nothingPending()
		require.EqualValues(t, 1, metric(t, m, "ghost_entries_total"))
	})
}

func TestAdopt(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 4)
		_, err := r.admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		c := s.client(t)
		log := watch(c)
		rd, out := r.reader(c, r.config("c", 2), redispoll.Hooks{}, nil)
		// The look at own pending entries at the start would take up what is claimed before it.
		require.Eventually(t, func() bool { return log.count("xreadgroup") > 1 }, patience, tick)
		claim := func(ids ...string) []redis.XMessage {
			ms, err := r.admin.XClaim(t.Context(), &redis.XClaimArgs{Stream: r.stream, Group: group, Consumer: "c", Messages: ids}).Result()
			require.NoError(t, err)
			return ms
		}
		var acked atomic.Int64
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[:3]...), map[string]int64{ids[0]: 7}, func() { acked.Add(1) }))
		first := receive(t, out)
		second := receive(t, out)
		if string(first.Payload) != "0" {
			first, second = second, first
		}
		require.EqualValues(t, 7, pipeline.OriginFrom(first.Context()).Delivered)
		require.EqualValues(t, 1, pipeline.OriginFrom(second.Context()).Delivered)
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[0]), nil, func() { acked.Add(1) }), "what is in hand is not run twice")
		first.Ack()
		second.Ack()
		require.Equal(t, "2", string(receiveAck(t, out).Payload))
		require.NoError(t, rd.Drain(t.Context()))
		require.EqualValues(t, 3, acked.Load(), "once each")

		require.ErrorIs(t, rd.Adopt(t.Context(), claim(ids[3]), nil, nil), redispoll.ErrStopped)
		p, err := r.admin.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: r.stream, Group: group, Idle: time.Minute, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		require.Len(t, p, 1, "a stopped reader gives back what it is offered")
	})
}

func TestSubscriberReclaimsFromTheDead(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 35)
		_, err := r.admin.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: group, Consumer: "dead", Streams: []string{r.stream, ">"}, Block: -1}).Result()
		require.NoError(t, err)
		m := redispoll.NewMetrics()
		_, out := r.subscriber(s.client(t), 50*time.Millisecond, 0, m)
		var wrong atomic.Int64
		h := handle(t, out, func(m *message.Message) bool {
			if pipeline.OriginFrom(m.Context()).Delivered != 2 {
				wrong.Add(1)
			}
			return true
		})
		h.waitFor(t, 35)
		require.Empty(t, h.repeated())
		require.Zero(t, wrong.Load())
		require.EqualValues(t, 35, metric(t, m, "reclaimed_total"))
		require.Eventually(t, func() bool { return len(r.consumers()) == 1 }, patience, tick, "the dead consumer stays: %s", fmt.Sprint(r.consumers()))
	})
}
