package poll_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMetricsAreWellNamed(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(poll.NewMetrics().Collectors()...)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	require.Empty(t, problems)
}

// subscriber is a Subscriber that also reclaims, quickly.
func (r *rig) subscriber(c goredis.UniversalClient, minIdle, longestHold time.Duration, m *poll.Metrics) (*pubsub.Subscriber, <-chan *message.Message) {
	r.T.Helper()
	cfg := r.config("", 2)
	cfg.MinIdle, cfg.LongestHold = minIdle, longestHold
	sub, err := pubsub.NewSubscriber(c, pubsub.SubscriberConfig{
		Group: group, Config: cfg.Config, ReclaimInterval: 20 * time.Millisecond, CloseTimeout: time.Second, Logger: redistest.Logger(r.T), Metrics: m,
	})
	require.NoError(r.T, err)
	r.T.Cleanup(func() { require.NoError(r.T, sub.Close()) })
	out, err := sub.Subscribe(context.Background(), r.Stream)
	require.NoError(r.T, err)
	return sub, out
}

// Promise 8: nobody else is given the message of a slow handler meanwhile.
func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel() // it is all waiting
		r := newRig(t, s)
		r.Add(0, 4)
		const minIdle = 2 * time.Second // a process may stand still for two thirds of it
		m := poll.NewMetrics()
		_, a := r.subscriber(s.Client(t), minIdle, 0, m)
		_, b := r.subscriber(s.Client(t), minIdle, 0, m)
		both := make(chan *message.Message)
		h := redistest.Handle(t, both, func(*message.Message) bool {
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
					case <-h.Ended():
						return
					}
				}
			})
		}
		h.WaitFor(t, 4)
		r.NothingPending()
		require.Empty(t, h.Repeated())
		require.Greater(t, redistest.Metric(t, m, "heartbeats_total"), 8.0)
		require.Zero(t, redistest.Metric(t, m, "reclaimed_total"))
	})
}

// Beyond its longest hold a message is given to others; the late acknowledgement of the first reader must not
// acknowledge it for the second.
func TestLongestHoldAndAckFencing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 1)
		const minIdle = 300 * time.Millisecond
		ma := poll.NewMetrics()
		first, a := r.subscriber(s.Client(t), minIdle, 200*time.Millisecond, ma)
		stuck := redistest.Receive(t, a)
		_, b := r.subscriber(s.Client(t), minIdle, 0, nil)
		taken := redistest.Receive(t, b)
		require.Equal(t, stuck.UUID, taken.UUID)
		require.EqualValues(t, 2, pipeline.OriginFrom(taken.Context()).Delivered)

		require.NoError(t, stuck.Context().Err(), "a late handler is not cancelled")
		stuck.Ack()
		require.NoError(t, first.Close()) // flushes the late ack
		require.Len(t, r.Pending(), 1, "the late ack acknowledged the second reader's entry")
		taken.Ack()
		r.NothingPending()
	})
}

func TestDrainGivesBackWhatNoSlotHasBegun(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		ids := r.Add(0, 10)
		m := poll.NewMetrics()
		cfg := r.config("leaving", 1)
		cfg.BatchSize, cfg.MinIdle = 10, time.Hour
		rd, out := r.reader(s.Client(t), cfg, m)
		inFlight := redistest.Receive(t, out)
		require.Eventually(t, func() bool { return rd.Stats().Buffered == 9 }, patience, tick)

		drained := make(chan error, 1)
		go func() { drained <- rd.Drain(context.Background()) }()
		idle := func() []goredis.XPendingExt {
			p, err := r.Client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: r.Stream, Group: group, Idle: time.Hour, Start: "-", End: "+", Count: 100}).Result()
			require.NoError(t, err)
			return p
		}
		require.Eventually(t, func() bool { return len(idle()) == 9 }, patience, tick, "not claimable at once, while the handler goes on")
		for i, p := range idle() {
			require.Equal(t, ids[i+1], p.ID)
			require.EqualValues(t, 1, p.RetryCount, "releasing must not count as a delivery")
		}
		require.Empty(t, drained, "Drain must wait for the message in flight")
		require.NoError(t, inFlight.Context().Err(), "and keep its context alive")
		inFlight.Ack()
		require.NoError(t, <-drained)
		require.Len(t, r.Pending(), 9)
		require.EqualValues(t, 9, redistest.Metric(t, m, "released_total"))
		require.Equal(t, []string{"leaving"}, r.Consumers(), "a consumer that still holds entries must stay")

		// The next one takes them up, and then the one that left is gone.
		_, next := r.subscriber(s.Client(t), time.Hour, 0, nil)
		h := redistest.Handle(t, next, nil)
		h.WaitFor(t, 9)
		require.Empty(t, h.Repeated())
		r.NothingPending()
		require.Eventually(t, func() bool { return len(r.Consumers()) == 1 && r.Consumers()[0] != "leaving" }, patience, tick)
	})
}

func TestDrainRemovesAnEmptyConsumer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 3)
		rd, out := r.reader(s.Client(t), r.config("c", 2), nil)
		h := redistest.Handle(t, out, nil)
		h.WaitFor(t, 3)
		require.Equal(t, []string{"c"}, r.Consumers())
		require.NoError(t, rd.Drain(t.Context()))
		require.Empty(t, r.Consumers())
		require.NoError(t, rd.Drain(t.Context()), "a second Drain")
		<-rd.Done()
		require.Zero(t, rd.Free())
	})
}

// The acknowledgement that comes last is sent until it is through, although everything else has ended.
func TestDrainFlushesTheLastAck(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		c := s.Client(t)
		log := redistest.Watch(c)
		for i := range 10 {
			r.Add(i, 1)
			rd, out := r.reader(c, r.config("c", 1), nil)
			m := redistest.Receive(t, out)
			var failed atomic.Bool
			log.FailSending(func(cmd goredis.Cmder) bool { return cmd.Name() == "xack" && failed.CompareAndSwap(false, true) })
			drained := make(chan error, 1)
			go func() { drained <- rd.Drain(context.Background()) }()
			m.Ack()
			require.NoError(t, <-drained)
			require.True(t, failed.Load())
			require.Empty(t, r.Pending())
		}
	})
}

// Somebody has claimed what is in flight and in the buffer: neither the heartbeat nor the end may take it back.
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
		require.Equal(t, "2", string(last.Payload), "what is somebody else's must not be begun")
		last.Ack()
		require.NoError(t, rd.Drain(t.Context()))
		require.Equal(t, 2, others(), "acknowledged for, or stolen from, its new owner")
		require.Len(t, r.Pending(), 2)
	})
}

func TestDrainOutOfTime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 2)
		rd, out := r.reader(s.Client(t), r.config("c", 2), nil)
		quick, stuck := redistest.Receive(t, out), redistest.Receive(t, out)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		quick.Ack()
		require.ErrorIs(t, rd.Drain(ctx), context.DeadlineExceeded)
		<-rd.Done()
		require.NoError(t, ctx.Err(), "time was left over for the last acks")
		require.Len(t, r.Pending(), 1, "what is still being handled stays pending")
		require.NoError(t, stuck.Context().Err(), "its context lives on")
	})
}

func TestDrainBeforeStart(t *testing.T) {
	t.Parallel()
	c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, c.Close()) }()
	rd := poll.NewReader(c, poll.Options{Stream: "s", Group: group, Consumer: "c"}, nil, nil, nil)
	require.NoError(t, rd.Drain(t.Context()))
	<-rd.Done()
	rd.Start() // too late, and harmless
	require.True(t, rd.Stats().StartedAt.IsZero())
}
