package poll_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Streams that are refused, gone, or whose owner does not answer do not delay the others of their
// Scheduler.
func TestOneStreamDoesNotStopTheOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		scheduler, c := &poll.Scheduler{}, s.Client(t)
		o := func(r *rig) poll.Options {
			o := r.config("c", 4)
			o.Scheduler = scheduler
			return o
		}
		refused, slow, gone, good := newRig(t, s), newRig(t, s), newRig(t, s), newRig(t, s)
		require.NoError(t, c.Del(t.Context(), refused.Stream, slow.Stream, gone.Stream).Err())
		require.NoError(t, c.Set(t.Context(), refused.Stream, "x", 0).Err())
		_, _ = refused.reader(c, o(refused), nil)
		asked := make(chan struct{}, 1)
		waits := o(slow)
		answer := make(chan struct{})
		waits.Absent = func(context.Context) (bool, error) {
			asked <- struct{}{}
			<-answer
			return false, nil
		}
		_, _ = slow.reader(c, waits, nil)
		t.Cleanup(func() { close(answer) })
		fails := o(gone)
		fails.Absent = func(context.Context) (bool, error) { return false, errors.New("not now") }
		_, _ = gone.reader(c, fails, nil)
		_, out := good.reader(c, o(good), nil)
		h := redistest.Handle(t, out, nil)
		<-asked
		good.Add(0, 10)
		h.WaitFor(t, 10)
		good.Add(10, 10)
		h.WaitFor(t, 20)
	})
}

// Each reader of a Scheduler gets its entries, also when there are more than fit into one pipeline.
// While nothing is in flight there are no goroutines.
func TestASchedulerReadsManyStreams(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		const n = 250
		scheduler, c := &poll.Scheduler{}, s.Client(t)
		out := make(chan *message.Message)
		h := redistest.Handle(t, out, nil)
		rigs := make([]*rig, n)
		for i := range rigs {
			rigs[i] = newRig(t, redistest.Server{Name: s.Name, Addr: s.Addr})
		}
		before := runtime.NumGoroutine()
		readers := make([]*poll.Reader, n)
		for i, r := range rigs {
			o := r.config("c", 8)
			o.Scheduler, o.PollInterval = scheduler, 200*time.Millisecond
			readers[i] = poll.NewReader(c, o, out, redistest.Logger(t), nil)
			readers[i].Start()
		}
		for i, r := range rigs {
			r.Add(i, 1)
		}
		h.WaitFor(t, n)
		require.Empty(t, h.Repeated())
		require.Eventually(t, func() bool { return runtime.NumGoroutine() < before+n/2 }, patience, tick, "idle readers have goroutines")
		for i, r := range rigs {
			r.Add(n+i, 1)
			if i%2 == 0 {
				readers[i].Wake()
			}
		}
		h.WaitFor(t, 2*n)
		for _, rd := range readers {
			require.NoError(t, rd.Drain(t.Context()))
		}
	})
}

// A node of a Cluster that does not answer stops the reads of its own streams only.
func TestASilentNodeStopsOnlyItsStreams(t *testing.T) {
	t.Parallel()
	const streams = 200
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true, ReadTimeout: time.Minute,
		ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) {
			return []goredis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []goredis.ClusterNode{{Addr: answers.Addr}}},
				{Start: 8192, End: 16383, Nodes: []goredis.ClusterNode{{Addr: proxy.Addr()}}},
			}, nil
		},
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	out := make(chan *message.Message)
	h := redistest.Handle(t, out, nil)
	var scheduler poll.Scheduler
	var live []*redistest.Rig
	var readers []*poll.Reader
	for i := range streams {
		r := &redistest.Rig{T: t, Client: c, Stream: fmt.Sprint("stream:", i)}
		r.CreateGroup()
		o := (&rig{r}).config("c", 4)
		o.Scheduler = &scheduler
		readers = append(readers, poll.NewReader(c, o, out, redistest.Logger(t), nil))
		readers[i].Start()
		node, err := c.MasterForKey(t.Context(), r.Stream)
		require.NoError(t, err)
		if strings.HasSuffix(answers.Addr, node.Options().Addr) {
			live = append(live, r)
		}
		r.Add(i, 1)
	}
	h.WaitFor(t, streams)
	require.InDelta(t, streams/2, len(live), streams/4)
	proxy.Mute()
	proxy.Cut()
	frozen, handled, slow := time.Now(), streams, 0
	// The readers of the silent node try again meanwhile.
	for rounds := 0; rounds < 3 || time.Since(frozen) < 2*time.Second; rounds++ {
		begin := time.Now()
		for _, r := range live {
			r.Add(handled, 1)
			handled++
		}
		h.WaitFor(t, handled)
		if time.Since(begin) > 5*time.Second {
			slow++
		}
	}
	require.Less(t, slow, 3, "a read of the silent node takes 10 s")

	proxy.SetDown(true) // so that the drains end soon
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var drains sync.WaitGroup
	for _, rd := range readers {
		drains.Go(func() {
			_ = rd.Drain(ctx) // those of the silent node are not drained in time
			<-rd.Done()
		})
	}
	drains.Wait()
}
