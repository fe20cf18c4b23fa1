package pipeline_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// fromSources is a subscription of messages whose source is the first letter of the payload.
type fromSources struct {
	pipeline.Source
	out      chan *message.Message
	acks     chan string
	inFlight *sync.WaitGroup
}

func newFromSources() fromSources {
	return fromSources{pipelinetest.NewFeed("in"), make(chan *message.Message), make(chan string, 1000), &sync.WaitGroup{}}
}

func (s fromSources) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	return s, nil
}

func (s fromSources) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.out, nil
}

func (s fromSources) Close() error { return nil }

func (s fromSources) Drain(ctx context.Context) error {
	defer close(s.out)
	settled := make(chan struct{})
	go func() {
		s.inFlight.Wait()
		close(settled)
	}()
	select {
	case <-settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends payloads and records which of their messages are acked and nacked.
func (s fromSources) send(payloads ...string) {
	for _, p := range payloads {
		m := message.NewMessage(p, []byte(p))
		m.SetContext(pipeline.WithDelivery(context.Background(), pipeline.Delivery{Origin: pipeline.Origin{Source: p[:1]}}))
		s.out <- m
		s.inFlight.Go(func() {
			select {
			case <-m.Acked():
				s.acks <- "+" + p
			case <-m.Nacked():
				s.acks <- "-" + p
			}
		})
	}
}

// settled returns the next n outcomes.
func (s fromSources) settled(n int) (all []string) {
	limit := time.After(2 * time.Minute)
	for range n {
		select {
		case outcome := <-s.acks:
			all = append(all, outcome)
		case <-limit:
			return append(all, "no further outcome in 2 min")
		}
	}
	slices.Sort(all)
	return all
}

// perSource starts a route with batches per source. The handler of a source that has a channel
// waits for it.
func perSource(t *testing.T, limits pipeline.Batch, hang map[string]chan struct{}, panics string) (fromSources, batches, *pipeline.Runtime) {
	t.Helper()
	src, b := newFromSources(), newBatches()
	close(b.release)
	limits.PerSource = true
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: src, Batch: limits, Policy: lossy, HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			results := b.handle(ctx, msgs)
			if wait := hang[string(msgs[0].Payload[:1])]; wait != nil {
				<-wait
			}
			if panics != "" && slices.ContainsFunc(msgs, func(m *message.Message) bool { return string(m.Payload) == panics }) {
				panic("ouch")
			}
			return results
		}})
	}})
	require.NoError(t, err)
	return src, b, rt
}

func TestBatchesPerSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
		src, b, rt := perSource(t, pipeline.Batch{MaxRecords: 3}, hang, "")
		src.send("a1")
		require.Equal(t, []string{"a1"}, b.all(), "the first message does not wait")
		src.send("a2", "b1")
		require.Equal(t, []string{"b1"}, b.all(), "a batch of a is being handled")
		src.send("a3", "b2", "a4", "a5")
		for n := range 100 {
			src.send([]string{"a", "b"}[n%2] + "x")
		}
		src.send("c1", "c2")
		require.Equal(t, "c1 c2", strings.Join(b.all(), " "), "sources that hang delay no other")
		hang["a"] <- struct{}{}
		require.Equal(t, []string{"a2 a3 a4"}, b.all(), "in order, up to the limit, one batch at a time")
		hang["a"] <- struct{}{}
		require.Equal(t, []string{"a5 ax ax"}, b.all())
		close(hang["a"])
		close(hang["b"])
		synctest.Wait()
		require.NoError(t, rt.Stop(t.Context()))
	})
}

func TestBatchesPerSourceLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, b, rt := perSource(t, pipeline.Batch{MaxRecords: 3, MaxBytes: 8, Linger: time.Second}, nil, "")
		src.send("a1")
		time.Sleep(time.Second - 1)
		src.send("a2", "b1", "b2", "b3")
		require.Equal(t, []string{"b1 b2 b3"}, b.all(), "a full batch does not linger")
		time.Sleep(time.Nanosecond)
		require.Equal(t, []string{"a1 a2"}, b.all())
		src.send("c1234", "c5678")
		require.Equal(t, []string{"c1234"}, b.all(), "the next one does not fit")
		stopped := time.Now()
		require.NoError(t, rt.Stop(t.Context()))
		require.Equal(t, stopped, time.Now(), "a drain waits for no linger")
		require.Equal(t, []string{"c5678"}, b.all())
	})
}

// A source whose batch hangs keeps its turn. Its other messages are nacked at the end, and those of
// other sources are handled.
func TestBatchesPerSourceAtTheEnd(t *testing.T) {
	t.Parallel()
	hang := map[string]chan struct{}{"a": make(chan struct{})}
	src, b, rt := perSource(t, pipeline.Batch{}, hang, "")
	src.send("a1")
	require.Equal(t, "a1", <-b.started)
	src.send("a2", "b1", "a3")
	require.Equal(t, "b1", <-b.started)
	require.Equal(t, []string{"+b1"}, src.settled(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // there is no time left to drain
	require.ErrorContains(t, rt.Stop(ctx), "route r: ")
	require.Equal(t, []string{"-a2", "-a3"}, src.settled(2))
	close(hang["a"])
	require.Equal(t, []string{"+a1"}, src.settled(1))
	require.Empty(t, b.started, "nothing starts after the drain")
}

// A panic of a batch ends neither the queue of its source nor its order.
func TestBatchesPerSourceAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := map[string]chan struct{}{"a": make(chan struct{})}
		src, b, rt := perSource(t, pipeline.Batch{}, hang, "a3")
		src.send("a1")
		require.Equal(t, []string{"a1"}, b.all())
		src.send("a2", "a3", "a4", "b1")
		require.Equal(t, []string{"b1"}, b.all())
		close(hang["a"])
		require.Equal(t, []string{"a2 a3 a4", "a2", "a3 a4", "a3", "a4"}, b.all())
		require.Equal(t, []string{"+a1", "+a2", "+a3", "+a4", "+b1"}, src.settled(5), "the route drops what can't succeed")
		src.send("a5")
		require.Equal(t, []string{"a5"}, b.all())
		require.NoError(t, rt.Stop(t.Context()))
	})
}
