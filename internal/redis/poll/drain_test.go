package poll_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestDrainReleasesWhatNoWorkerHasStarted(t *testing.T) {
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

func TestDrainOutOfTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		r.Add(0, 2)
		rd, out := r.reader(s.Client(t), r.config("c", 2), nil)
		quick, stuck := redistest.Receive(t, out), redistest.Receive(t, out)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		end, _ := ctx.Deadline()
		late := make(chan time.Duration, 1) // how late this process notices that the last acks begin
		time.AfterFunc(time.Until(end)-time.Second, func() { late <- time.Second - time.Until(end) })
		quick.Ack()
		require.ErrorIs(t, rd.Drain(ctx), context.DeadlineExceeded)
		<-rd.Done()
		left := ctx.Err()
		if <-late < 500*time.Millisecond { // a machine may stand still until the time is over
			require.NoError(t, left, "time was left over for the last acks")
		}
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

func TestDrainWithoutTheServerIsBounded(t *testing.T) {
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
		require.Less(t, time.Since(begin), patience)
		select {
		case <-rd.Done():
		case <-time.After(patience):
			require.FailNow(t, "its goroutines never end")
		}
	})
}
