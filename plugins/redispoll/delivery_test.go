package redispoll_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// metric reads one counter of m by its name without the prefix.
func metric(t *testing.T, m *redispoll.Metrics, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "millrace_redis_"+name {
			if g := f.GetMetric()[0].GetGauge(); g != nil {
				return g.GetValue()
			}
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.FailNow(t, "no metric", name)
	return 0
}

func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(redispoll.NewMetrics().Collectors()...)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// subscriber is a Subscriber that also reclaims, quickly.
func (r *rig) subscriber(c redis.UniversalClient, minIdle, longestHold time.Duration, m *redispoll.Metrics) (*redispoll.Subscriber, <-chan *message.Message) {
	r.t.Helper()
	cfg := r.config("", 2)
	cfg.MinIdle, cfg.LongestHold = minIdle, longestHold
	sub, err := redispoll.NewSubscriber(c, redispoll.SubscriberConfig{
		Group: group, ReaderConfig: cfg, ReclaimInterval: 20 * time.Millisecond, CloseTimeout: time.Second, Logger: logger(r.t), Metrics: m,
	})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), r.stream)
	require.NoError(r.t, err)
	return sub, out
}

// Promise 8: nobody else is given the message of a slow handler meanwhile.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 4)
		const minIdle = 300 * time.Millisecond
		m := redispoll.NewMetrics()
		_, a := r.subscriber(s.client(t), minIdle, 0, m)
		_, b := r.subscriber(s.client(t), minIdle, 0, m)
		both := make(chan *message.Message)
		h := handle(t, both, func(*message.Message) bool {
			<-time.After(5 * minIdle)
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
					case <-h.quit:
						return
					}
				}
			})
		}
		h.waitFor(t, 4)
		r.nothingPending()
		require.Empty(t, h.repeated())
		require.Greater(t, metric(t, m, "heartbeats_total"), 8.0)
		require.Zero(t, metric(t, m, "reclaimed_total"))
	})
}

// Beyond its longest hold a message is given to others; the late acknowledgement of the first reader must not
// acknowledge it for the second.
func TestLongestHoldAndAckFencing(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 1)
		const minIdle = 300 * time.Millisecond
		ma := redispoll.NewMetrics()
		first, a := r.subscriber(s.client(t), minIdle, 200*time.Millisecond, ma)
		stuck := receive(t, a)
		_, b := r.subscriber(s.client(t), minIdle, 0, nil)
		taken := receive(t, b)
		require.Equal(t, stuck.UUID, taken.UUID)
		require.EqualValues(t, 2, pipeline.OriginFrom(taken.Context()).Delivered)

		require.NoError(t, stuck.Context().Err(), "a late handler is not cancelled")
		stuck.Ack()
		require.NoError(t, first.Close()) // flushes the late ack
		require.Len(t, r.pending(), 1, "the late ack acknowledged the second reader's entry")
		taken.Ack()
		r.nothingPending()
	})
}

func TestDrainGivesBackWhatNoSlotHasBegun(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 10)
		m := redispoll.NewMetrics()
		cfg := r.config("leaving", 1)
		cfg.Batch, cfg.MinIdle = 10, time.Hour
		rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, m)
		inHand := receive(t, out)
		require.Eventually(t, func() bool { return rd.Stats().Buffered == 9 }, patience, tick)

		drained := make(chan error, 1)
		go func() { drained <- rd.Drain(context.Background()) }()
		idle := func() []redis.XPendingExt {
			p, err := r.admin.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: r.stream, Group: group, Idle: time.Hour, Start: "-", End: "+", Count: 100}).Result()
			require.NoError(t, err)
			return p
		}
		require.Eventually(t, func() bool { return len(idle()) == 9 }, patience, tick, "not claimable at once, while the handler goes on")
		for i, p := range idle() {
			require.Equal(t, ids[i+1], p.ID)
			require.EqualValues(t, 1, p.RetryCount, "giving back must not count as a delivery")
		}
		require.Empty(t, drained, "Drain must wait for the message in hand")
		require.NoError(t, inHand.Context().Err(), "and keep its context alive")
		inHand.Ack()
		require.NoError(t, <-drained)
		require.Len(t, r.pending(), 9)
		require.EqualValues(t, 9, metric(t, m, "given_back_total"))
		require.Equal(t, []string{"leaving"}, r.consumers(), "a consumer that still holds entries must stay")

		// The next one takes them up, and then the one that left is gone.
		_, next := r.subscriber(s.client(t), time.Hour, 0, nil)
		h := handle(t, next, nil)
		h.waitFor(t, 9)
		require.Empty(t, h.repeated())
		r.nothingPending()
		require.Eventually(t, func() bool { return len(r.consumers()) == 1 && r.consumers()[0] != "leaving" }, patience, tick)
	})
}

func TestDrainRemovesAnEmptyConsumer(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 3)
		rd, out := r.reader(s.client(t), r.config("c", 2), redispoll.Hooks{}, nil)
		h := handle(t, out, nil)
		h.waitFor(t, 3)
		require.Equal(t, []string{"c"}, r.consumers())
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.consumers())
		require.NoError(t, rd.Drain(t.Context()), "a second Drain")
		<-rd.Done()
		require.Zero(t, rd.Free())
	})
}

// The acknowledgement that comes last is sent until it is through, although everything else has ended.
func TestDrainFlushesTheLastAck(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		c := s.client(t)
		log := watch(c)
		for i := range 10 {
			r.add(i, 1)
			rd, out := r.reader(c, r.config("c", 1), redispoll.Hooks{}, nil)
			m := receive(t, out)
			var failed atomic.Bool
			log.failSending(func(cmd redis.Cmder) bool { return cmd.Name() == "xack" && failed.CompareAndSwap(false, true) })
			drained := make(chan error, 1)
			go func() { drained <- rd.Drain(context.Background()) }()
			m.Ack()
			require.NoError(t, <-drained)
			require.True(t, failed.Load())
			require.Empty(t, r.pending())
		}
	})
}

// Somebody has claimed what is in hand and in the buffer: neither the heartbeat nor the end may take it back.
func TestClaimedEntriesAreNotStolenBack(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		ids := r.add(0, 3)
		m := redispoll.NewMetrics()
		cfg := r.config("c", 1)
		cfg.MinIdle = 300 * time.Millisecond
		rd, out := r.reader(s.client(t), cfg, redispoll.Hooks{}, m)
		inHand := receive(t, out)
		require.NoError(t, r.admin.XClaimJustID(t.Context(), &redis.XClaimArgs{Stream: r.stream, Group: group, Consumer: "other", Messages: ids[:2]}).Err())
		others := func() (n int) {
			for _, p := range r.pending() {
				if p.Consumer == "other" {
					n++
				}
			}
			return n
		}
		require.Eventually(t, func() bool { return metric(t, m, "lost_total") == 2 }, patience, tick)
		require.Equal(t, 2, others(), "stolen back by the heartbeat")
		inHand.Ack()
		last := receive(t, out)
		require.Equal(t, "2", string(last.Payload), "what is somebody else's must not be begun")
		last.Ack()
		require.NoError(t, rd.Drain(t.Context()))
		require.Equal(t, 2, others(), "acknowledged for, or stolen from, its new owner")
		require.Len(t, r.pending(), 2)
	})
}

func TestDrainOutOfTime(t *testing.T) {
	onServers(t, func(t *testing.T, s server) {
		r := newRig(t, s)
		r.add(0, 2)
		rd, out := r.reader(s.client(t), r.config("c", 2), redispoll.Hooks{}, nil)
		quick, stuck := receive(t, out), receive(t, out)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		quick.Ack()
		require.ErrorIs(t, rd.Drain(ctx), context.DeadlineExceeded)
		<-rd.Done()
		require.NoError(t, ctx.Err(), "time was left over for the last acks")
		require.Len(t, r.pending(), 1, "what is still being handled stays pending")
		require.NoError(t, stuck.Context().Err(), "its context lives on")
	})
}

func TestDrainBeforeStart(t *testing.T) {
	t.Parallel()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, c.Close()) }()
	rd := redispoll.NewReader(c, redispoll.ReaderConfig{Stream: "s", Group: group, Consumer: "c"}, nil, redispoll.Hooks{}, nil, nil)
	require.NoError(t, rd.Drain(t.Context()))
	<-rd.Done()
	rd.Start() // too late, and harmless
	require.True(t, rd.Stats().StartedAt.IsZero())
}

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
		rd, out := r.reader(c, cfg, redispoll.Hooks{}, nil)
		receive(t, out).Nack()
		require.Eventually(t, func() bool { return rd.Stats().InHand == 0 }, patience, tick)
		var lost atomic.Bool
		log.loseReplies(func(cmd redis.Cmder) bool { return cmd.Name() == "xreadgroup" && lost.CompareAndSwap(false, true) })
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
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[:3]...), map[string]int64{ids[0]: 7}))
		first := receive(t, out)
		second := receive(t, out)
		if string(first.Payload) != "0" {
			first, second = second, first
		}
		require.EqualValues(t, 7, pipeline.OriginFrom(first.Context()).Delivered)
		require.EqualValues(t, 1, pipeline.OriginFrom(second.Context()).Delivered)
		require.NoError(t, rd.Adopt(t.Context(), claim(ids[0]), nil), "what is in hand is not run twice")
		first.Ack()
		second.Ack()
		require.Equal(t, "2", string(receiveAck(t, out).Payload))
		require.NoError(t, rd.Drain(t.Context()))

		require.ErrorIs(t, rd.Adopt(t.Context(), claim(ids[3]), nil), redispoll.ErrStopped)
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
