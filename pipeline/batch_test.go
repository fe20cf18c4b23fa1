package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// batches is a batch handler that sends the payloads of each batch, and returns when release has a
// token or is closed.
type batches struct {
	started chan string
	release chan struct{}
}

func newBatches() batches {
	return batches{make(chan string, 100), make(chan struct{})}
}

func (b batches) handle(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
	payloads := make([]string, len(msgs))
	for i, m := range msgs {
		payloads[i] = string(m.Payload)
	}
	b.started <- strings.Join(payloads, " ")
	<-b.release
	return make([]pipeline.BatchResult, len(msgs))
}

// all returns the batches that have started.
func (b batches) all() (all []string) {
	synctest.Wait()
	for len(b.started) > 0 {
		all = append(all, <-b.started)
	}
	return all
}

// send sends payloads to a collector, one after another: a feed with a window keeps no order.
func send(feed *pipelinetest.Feed, payloads ...string) {
	for _, p := range payloads {
		feed.SendPayloads(p)
		synctest.Wait()
	}
}

// startBatches starts a route with a batch handler, with 100 messages in flight unless f limits
// them.
func startBatches(t *testing.T, b batches, limits pipeline.Batch, f pipeline.Flow) (*pipelinetest.Feed, *pipeline.Runtime) {
	t.Helper()
	feed := pipelinetest.NewFeed("in")
	if f.Window == 0 {
		f.Window = 100
	}
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: feed, HandleBatch: b.handle, Batch: limits, Flow: f, Policy: lossy})
	}})
	require.NoError(t, err)
	return feed, rt
}

func TestABatchGrowsWhileOthersAreHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		feed, rt := startBatches(t, b, pipeline.Batch{}, pipeline.Flow{})
		begin := time.Now()
		send(feed, "1")
		require.Equal(t, []string{"1"}, b.all(), "the first message does not wait")
		require.Equal(t, begin, time.Now())
		for _, alone := range []string{"2", "3"} {
			send(feed, alone)
			require.Empty(t, b.all(), "further messages may come while another batch is handled")
			time.Sleep(5 * time.Millisecond)
			require.Equal(t, []string{alone}, b.all(), "while there is a place, no message waits for long")
		}
		send(feed, "4", "5", "6")
		time.Sleep(time.Second)
		require.Empty(t, b.all(), "at most three batches at once")
		b.release <- struct{}{}
		require.Equal(t, []string{"4 5 6"}, b.all())
		close(b.release)
		require.NoError(t, rt.Stop(t.Context()))
	})
}

// A batch waits for further messages only while another one is handled.
func TestABatchDoesNotWaitAfterTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		feed, rt := startBatches(t, b, pipeline.Batch{}, pipeline.Flow{})
		send(feed, "1")
		require.Equal(t, []string{"1"}, b.all())
		begin := time.Now()
		send(feed, "2")
		require.Empty(t, b.all())
		b.release <- struct{}{}
		require.Equal(t, []string{"2"}, b.all())
		require.Equal(t, begin, time.Now())
		close(b.release)
		require.NoError(t, rt.Stop(t.Context()))
	})
}

func TestTheLimitsOfABatch(t *testing.T) {
	for name, tt := range map[string]struct {
		limits pipeline.Batch
		sent   []string
		want   []string
	}{
		"messages":          {pipeline.Batch{MaxRecords: 2}, []string{"1", "2", "3", "4", "5"}, []string{"1 2", "3 4", "5"}},
		"bytes":             {pipeline.Batch{MaxBytes: 4}, []string{"aa", "bb", "c", "ddd", "ee", "fff"}, []string{"aa bb", "c ddd", "ee", "fff"}},
		"a large message":   {pipeline.Batch{MaxBytes: 4}, []string{"a", "large", "b", "c"}, []string{"a", "large", "b c"}},
		"a large one first": {pipeline.Batch{MaxBytes: 4}, []string{"large", "larger"}, []string{"large", "larger"}},
		"neither":           {pipeline.Batch{}, []string{"1", "2", "3"}, []string{"1 2 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBatches()
				// The linger makes full batches out of one message at a time.
				tt.limits.Linger = time.Second
				feed, rt := startBatches(t, b, tt.limits, pipeline.Flow{})
				close(b.release)
				send(feed, tt.sent...)
				time.Sleep(2 * time.Second)
				require.ElementsMatch(t, tt.want, b.all(), "batches run at the same time")
				require.NoError(t, rt.Stop(t.Context()))
			})
		})
	}
}

func TestABatchLingers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		close(b.release)
		feed, rt := startBatches(t, b, pipeline.Batch{MaxRecords: 3, Linger: time.Second}, pipeline.Flow{})
		send(feed, "1")
		time.Sleep(time.Second - 1)
		send(feed, "2")
		require.Empty(t, b.all())
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"1 2"}, b.all())
		send(feed, "3", "4", "5")
		require.Equal(t, []string{"3 4 5"}, b.all(), "a full batch does not linger")
		send(feed, "6")
		stopped := time.Now()
		require.NoError(t, rt.Stop(t.Context()))
		require.Equal(t, stopped, time.Now(), "a drain waits for no linger")
		require.Equal(t, []string{"6"}, b.all(), "what was collected is handled before the stop")
	})
}

// The transport keeps the order, because it waits for the ack of the message before.
func TestABatchKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBatches()
		close(b.release)
		feed, rt := startBatches(t, b, pipeline.Batch{}, pipeline.Flow{Order: pipeline.OrderPartition})
		feed.SendPayloads("1", "2", "3", "4")
		require.Equal(t, []string{"1", "2", "3", "4"}, b.all(), "one message of the partition at a time")
		require.NoError(t, rt.Stop(t.Context()))
	})
}

// A route whose batches never return does not delay the others, and Stop does not wait for it.
func TestFrozenBatchesStopOnlyTheirRoute(t *testing.T) {
	t.Parallel()
	frozen, healthy := newBatches(), newBatches()
	defer close(frozen.release)
	close(healthy.release)
	in, other := pipelinetest.NewFeed("in"), pipelinetest.NewFeed("other")
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		flow := pipeline.Flow{Window: 10}
		r.Route(pipeline.Route{Name: "frozen", From: in, HandleBatch: frozen.handle, Flow: flow, Policy: lossy})
		r.Route(pipeline.Route{Name: "healthy", From: other, HandleBatch: healthy.handle, Flow: flow, Policy: lossy})
	}})
	require.NoError(t, err)
	for range 3 {
		in.SendPayloads("frozen")
		<-frozen.started
	}
	in.SendPayloads("no place")
	other.SendPayloads("1")
	require.Equal(t, "1", <-healthy.started)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // there is no time left to drain
	require.ErrorContains(t, rt.Stop(ctx), "route frozen: ")
	require.Empty(t, frozen.started, "no batch begins after the stop")
}

func TestBatchIsChecked(t *testing.T) {
	t.Parallel()
	require.NoError(t, pipeline.DefaultBatch().Validate())
	require.EqualError(t, pipeline.Batch{MaxRecords: -1, MaxBytes: 0, Linger: time.Minute}.Validate(),
		"max_records: must be >= 1, got -1\nmax_bytes: must be >= 1, got 0\nlinger: must be from 0s to 10s, got 1m0s")
	handle := func(context.Context, []*message.Message) []pipeline.BatchResult { return nil }
	_, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: pipelinetest.NewFeed("a"), Handle: ack, HandleBatch: handle, Batch: pipeline.Batch{Linger: -1}, Policy: lossy})
	}})
	require.ErrorContains(t, err, "route r: Handle and HandleBatch are set: set one of them")
	require.ErrorContains(t, err, "route r: batch.linger: must be from 0s to 10s, got -1ns")
}
