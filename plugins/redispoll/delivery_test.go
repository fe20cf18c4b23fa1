package redispoll_test

import (
	"context"
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
		t.Parallel() // it is all waiting
		r := newRig(t, s)
		r.add(0, 4)
		const minIdle = 2 * time.Second // a process may stand still for two thirds of it
		m := redispoll.NewMetrics()
		_, a := r.subscriber(s.client(t), minIdle, 0, m)
		_, b := r.subscriber(s.client(t), minIdle, 0, m)
		both := make(chan *message.Message)
		h := handle(t, both, func(*message.Message) bool {
			<-time.After(3 * minIdle)
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
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
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
