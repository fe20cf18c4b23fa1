package middleware_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A sink that does not return for some messages, such as one slow stream, stops no other batch.
func TestASlowSinkKeepsNoPlace(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	feed, _ := startBatch(t, pipeline.Route{HandleBatch: echo, To: sinkOf(func(msgs []*message.Message) error {
		if string(msgs[0].Payload) == "slow" {
			entered <- struct{}{}
			<-release
		}
		return nil
	})}, middleware.Options{})
	defer close(release)
	for range 3 { // places
		feed.SendPayloads("slow")
		<-entered
	}
	feed.SendPayloads("quick")
	select {
	case s := <-feed.Settled():
		require.True(t, s.Acked)
		require.Equal(t, "quick", string(s.Message.Payload))
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the quick message waits")
	}
}

// The next batch of a source is handled after the outputs of the one before were published.
func TestOutputsOfASourceAreInOrder(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, 10)
	var handled, published atomic.Int64
	tooEarly := make(chan int64, 10)
	feed, _ := startBatch(t, pipeline.Route{
		Batch: pipeline.Batch{PerSource: true},
		HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			n := handled.Add(1)
			if n > 1 {
				started <- struct{}{}
			}
			if published.Load() != n-1 {
				tooEarly <- n
			}
			return echo(ctx, msgs)
		},
		To: sinkOf(func([]*message.Message) error {
			select {
			case <-started: // the next batch
			case <-time.After(20 * time.Millisecond):
			}
			published.Add(1)
			return nil
		}),
	}, middleware.Options{})
	feed.SendPayloads("1", "2", "3")
	for range 3 {
		<-feed.Settled()
	}
	require.Empty(t, tooEarly)
}

// echo publishes each payload twice.
var echo = perMessage(func(m *message.Message) pipeline.BatchResult {
	return pipeline.BatchResult{Out: []*message.Message{message.NewMessage("", m.Payload), {Payload: m.Payload}}}
})

// sinkOf is a sink made of a function.
type sinkOf func(msgs []*message.Message) error

func (sinkOf) Describe() pipeline.Endpoint { return pipeline.Endpoint{Kind: "sink", Name: "out"} }

func (s sinkOf) Publish(_ context.Context, msgs ...*message.Message) error { return s(msgs) }

func TestPublishingOfABatch(t *testing.T) {
	t.Parallel()
	has := func(msgs []*message.Message, payload string) bool { return slices.Contains(payloads(msgs), payload) }
	for name, tt := range map[string]struct {
		fail         func(msgs []*message.Message) error
		calls        int
		nacked, dead []string
	}{
		"one call": {func([]*message.Message) error { return nil }, 1, nil, nil},
		"some failed": {func(msgs []*message.Message) error {
			e := &pipeline.PartialError{Failed: map[int]error{}, Size: len(msgs)}
			for i, m := range msgs {
				switch string(m.Payload) {
				case "b":
					e.Failed[i] = errBoom
				case "c":
					e.Failed[i] = pipeline.Permanent(errBoom)
				}
			}
			return e
		}, 1, []string{"b"}, []string{"c"}},
		"all failed": {func([]*message.Message) error { return errBoom }, 1, []string{"a", "b", "c"}, nil},
		"one can never be published": {func(msgs []*message.Message) error {
			if has(msgs, "b") {
				return pipeline.Permanent(errBoom)
			}
			return nil
		}, 4, nil, []string{"b"}},
		"a panic of the sink": {func(msgs []*message.Message) error {
			if has(msgs, "b") {
				panic("ouch")
			}
			return nil
		}, 4, nil, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c calls
			b := batchOf{payloads: []string{"a", "b", "c"}, route: pipeline.Route{HandleBatch: echo, To: sinkOf(func(msgs []*message.Message) error {
				c.note(msgs)
				return tt.fail(msgs)
			})}}
			var nacked []string
			for payload, acked := range b.run(t) {
				if !acked {
					nacked = append(nacked, payload)
				}
			}
			slices.Sort(nacked)
			require.Equal(t, tt.nacked, nacked)
			require.Equal(t, tt.dead, payloads(b.dead.Messages()))
			require.Len(t, c.all, tt.calls)
			require.Equal(t, []string{"a", "a", "b", "b", "c", "c"}, c.all[0])
		})
	}
}

func TestARefusedRecordAloneIsPublishedOnce(t *testing.T) {
	t.Parallel()
	var c calls
	b := batchOf{payloads: []string{"a"}, route: pipeline.Route{To: sinkOf(func(msgs []*message.Message) error {
		c.note(msgs)
		return pipeline.Permanent(errBoom)
	})}}
	b.route.HandleBatch = perMessage(func(m *message.Message) pipeline.BatchResult {
		return pipeline.BatchResult{Out: []*message.Message{message.NewMessage("", m.Payload)}}
	})
	b.run(t)
	require.Len(t, b.dead.Messages(), 1)
	require.Len(t, c.all, 1)
}

func TestOutputsOfABatchThatAreNotWhole(t *testing.T) {
	t.Parallel()
	b := batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{HandleBatch: echo}}
	b.run(t)
	require.Contains(t, b.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), "no To")
	b = batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{To: pipelinetest.NewRecorder("out")}}
	b.route.HandleBatch = perMessage(func(*message.Message) pipeline.BatchResult {
		return pipeline.BatchResult{Out: make([]*message.Message, 1)}
	})
	b.run(t)
	require.Contains(t, b.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), "the handler's message 1 of 1 is nil")
}
