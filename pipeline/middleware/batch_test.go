package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// batchOf is one batch on a route with a feed, and what became of it.
type batchOf struct {
	route       pipeline.Route
	payloads    []string
	tracer      *sdktrace.TracerProvider
	opts        middleware.Options
	retry, dead *pipelinetest.Recorder
	reg         *pipeline.Registry
	log         *slog.Logger
}

// run handles the payloads as one batch, and returns how the first delivery of each ended.
func (b *batchOf) run(t *testing.T) map[string]bool {
	t.Helper()
	feed := pipelinetest.NewFeed("in")
	feed.RedeliveryDelay = time.Hour
	b.retry, b.dead = pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
	b.route.From = feed
	b.route.Flow.Window = len(b.payloads)
	b.route.Batch = pipeline.Batch{MaxRecords: len(b.payloads), Linger: 10 * time.Second}
	if b.route.Policy.DeadLetter == nil {
		b.route.Policy.DeadLetter = b.dead
	}
	if b.route.Policy.Retry.Max > 0 {
		b.route.Policy.Retry.To = b.retry
	}
	env := pipeline.Env{Logger: b.log}
	if b.log == nil {
		env.Logger = pipelinetest.Logger(t)
	}
	if b.tracer != nil {
		env.Tracer = b.tracer
	}
	var err error
	b.reg, err = pipeline.NewRegistry(env, onRoute{b.route})
	require.NoError(t, err)
	chain := middleware.New(b.reg, b.opts)
	rt := pipeline.NewRuntime(b.reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
	require.NoError(t, rt.Start(t.Context()))
	feed.SendPayloads(b.payloads...)
	acked := map[string]bool{}
	for range b.payloads {
		select {
		case s := <-feed.Settled():
			n, err := strconv.Atoi(s.Message.UUID) // from 1
			require.NoError(t, err)
			acked[b.payloads[n-1]] = s.Acked
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "not all messages ended", "ended: %v", acked)
		}
	}
	require.NoError(t, rt.Stop(context.Background()))
	return acked
}

// perMessage is a batch handler that calls f for each message.
func perMessage(f func(m *message.Message) pipeline.BatchResult) pipeline.BatchHandler {
	return func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
		results := make([]pipeline.BatchResult, len(msgs))
		for i, m := range msgs {
			results[i] = f(m)
		}
		return results
	}
}

func payloads(msgs []*message.Message) (all []string) {
	for _, m := range msgs {
		all = append(all, string(m.Payload))
	}
	slices.Sort(all)
	return all
}

var errBoom = errors.New("boom")

// errorsOf has an error per payload.
var errorsOf = map[string]error{
	"good":      nil,
	"bad":       errBoom,
	"permanent": pipeline.Permanent(errBoom),
	"later":     pipeline.RetryAfter(errBoom, time.Minute),
	"conflict":  pipeline.WithClass(pipeline.Permanent(errBoom), "conflict"),
	"timeout":   context.DeadlineExceeded,
}

// A message in a batch ends as it would end alone, whether its error came with the batch or with
// Then.
func TestOutcomesOfABatch(t *testing.T) {
	t.Parallel()
	alone := func(m *message.Message) ([]*message.Message, error) { return nil, errorsOf[string(m.Payload)] }
	handlers := map[string]pipeline.BatchHandler{
		"with the batch": perMessage(func(m *message.Message) pipeline.BatchResult {
			_, err := alone(m)
			m.Payload = []byte("changed")
			return pipeline.BatchResult{Err: err}
		}),
		"then": perMessage(func(*message.Message) pipeline.BatchResult {
			return pipeline.BatchResult{Err: errors.New("replaced"), Then: alone}
		}),
	}
	for name, handle := range handlers {
		for _, retries := range []int{0, 3} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := batchOf{route: pipeline.Route{HandleBatch: handle}}
				b.route.Policy.Retry.Max = retries
				for payload := range errorsOf {
					if payload != "later" || retries > 0 { // it would wait for its delay
						b.payloads = append(b.payloads, payload)
					}
				}
				acked := b.run(t)
				var dead, retried []string
				for _, payload := range b.payloads {
					route := pipeline.Route{Handle: alone, Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")}}
					retry := pipelinetest.NewRecorder("retry")
					if retries > 0 {
						route.Policy.Retry = pipeline.Retry{To: retry, Max: retries}
					}
					single := settle(t, route, message.NewMessage("1", []byte(payload)))
					require.Equal(t, single.Acked, acked[payload], payload)
					dead = append(dead, payloads(route.Policy.DeadLetter.(*pipelinetest.Recorder).Messages())...)
					retried = append(retried, payloads(retry.Messages())...)
				}
				slices.Sort(dead)
				slices.Sort(retried)
				require.Equal(t, dead, payloads(b.dead.Messages()), "dead letters")
				require.Equal(t, retried, payloads(b.retry.Messages()), "retry records")
				for _, m := range b.dead.Messages() {
					require.Equal(t, pipeline.Class(errorsOf[string(m.Payload)]), m.Metadata.Get(pipeline.MetaDeadClass))
				}
			})
		}
	}
}

// calls notes the batches that a handler was called with.
type calls struct {
	mu  sync.Mutex
	all [][]string
}

func (c *calls) note(msgs []*message.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, payloads(msgs))
}

// Only the message that breaks the call for its batch becomes a dead letter.
func TestABrokenBatchIsHandledInHalves(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(msgs []*message.Message) []pipeline.BatchResult{
		"panic":     func([]*message.Message) []pipeline.BatchResult { panic("ouch") },
		"permanent": func([]*message.Message) []pipeline.BatchResult { return make([]pipeline.BatchResult, 99) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c calls
			b := batchOf{payloads: []string{"1", "2", "bad", "4", "5", "6", "7", "8"}}
			b.route.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
				c.note(msgs)
				if slices.ContainsFunc(msgs, func(m *message.Message) bool { return string(m.Payload) == "bad" }) {
					for _, m := range msgs {
						m.Payload = []byte("scribbled over")
					}
					return fail(msgs)
				}
				return make([]pipeline.BatchResult, len(msgs))
			}
			for payload, acked := range b.run(t) {
				require.True(t, acked, payload)
			}
			require.Equal(t, []string{"bad"}, payloads(b.dead.Messages()))
			require.Equal(t, name, b.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
			require.Len(t, c.all, 7, "8, 4 and 4, 2 and 2, 1 and 1")
		})
	}
}

// A message that ends the goroutine of its handler stays unhandled, and its neighbours are handled.
func TestABatchWhoseGoroutineEnds(t *testing.T) {
	t.Parallel()
	var c calls
	b := batchOf{payloads: []string{"1", "2", "bad", "4"}}
	b.route.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
		c.note(msgs)
		if slices.ContainsFunc(msgs, func(m *message.Message) bool { return string(m.Payload) == "bad" }) {
			runtime.Goexit()
		}
		return make([]pipeline.BatchResult, len(msgs))
	}
	require.Equal(t, map[string]bool{"1": true, "2": true, "bad": false, "4": true}, b.run(t))
	require.Len(t, c.all, 5, "4, 2 and 2, 1 and 1")
}

// The longest hold counts for all calls of a batch that breaks, not for each half again.
func TestABatchThatBreaksSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, dead := pipelinetest.NewFeed("in"), pipelinetest.NewRecorder("dead")
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{pipeline.Route{
			From: feed, Flow: pipeline.Flow{Window: 4}, Batch: pipeline.Batch{MaxRecords: 4, Linger: time.Second},
			Policy: pipeline.Policy{LongestHold: 10 * time.Second, DeadLetter: dead},
			HandleBatch: func(context.Context, []*message.Message) []pipeline.BatchResult {
				time.Sleep(4 * time.Second)
				panic("ouch")
			},
		}})
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{MaxStuck: 1})
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
		require.NoError(t, rt.Start(t.Context()))
		begin := time.Now()
		feed.SendPayloads("1", "2", "3", "4")
		require.ErrorContains(t, <-rt.Failed(), "longest hold")
		require.Equal(t, 10*time.Second, time.Since(begin))
		require.NoError(t, rt.Stop(t.Context()))
		require.Len(t, dead.Messages(), 4)
	})
}

// A call that hangs is reported with its first message: that of the whole batch, or of a half that is
// handled again.
func TestACallOfABatchThatHangsIsReported(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]int{"the batch": 4, "a half": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				release, first := make(chan struct{}), make(chan pipeline.Origin, 1)
				feed := pipelinetest.NewFeed("in")
				reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{pipeline.Route{
					From: feed, Flow: pipeline.Flow{Window: 4}, Batch: pipeline.Batch{MaxRecords: 4, Linger: time.Second},
					Policy: pipeline.Policy{LongestHold: time.Minute, DeadLetter: pipelinetest.NewRecorder("dead")},
					HandleBatch: func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
						if len(msgs) > hangs {
							panic("ouch")
						}
						select {
						case first <- pipeline.DeliveryFrom(msgs[0].Context()).Origin:
							<-release
						default: // the other half
						}
						return make([]pipeline.BatchResult, len(msgs))
					},
				}})
				require.NoError(t, err)
				chain := middleware.New(reg, middleware.Options{MaxStuck: 1})
				rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
				require.NoError(t, rt.Start(t.Context()))
				defer func() {
					close(release)
					require.NoError(t, rt.Stop(context.Background()))
				}()
				feed.SendPayloads("1", "2", "3", "4")
				require.ErrorContains(t, <-rt.Failed(), " with "+(<-first).String())
			})
		})
	}
}

// An error of the time limit counts for each message, and a goroutine that ends is no ack.
func TestABatchThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	b := batchOf{payloads: []string{"1", "2"}}
	b.route.Policy = pipeline.Policy{Timeout: time.Millisecond, Retry: pipeline.Retry{Max: 9}}
	b.route.HandleBatch = func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
		<-ctx.Done()
		return perMessage(func(m *message.Message) pipeline.BatchResult {
			return pipeline.BatchResult{Err: errors.Join(ctx.Err(), m.Context().Err())}
		})(ctx, msgs)
	}
	require.Equal(t, map[string]bool{"1": true, "2": true}, b.run(t))
	require.Len(t, b.retry.Messages(), 2)

	for name, handle := range map[string]pipeline.BatchHandler{
		"the batch": func(context.Context, []*message.Message) []pipeline.BatchResult { runtime.Goexit(); return nil },
		"then": perMessage(func(*message.Message) pipeline.BatchResult {
			return pipeline.BatchResult{Then: func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }}
		}),
	} {
		b = batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{HandleBatch: handle}}
		require.Equal(t, map[string]bool{"1": false, "2": false}, b.run(t), name)
	}
}

// startBatch starts a route whose batches are single messages.
func startBatch(t *testing.T, r pipeline.Route, opts middleware.Options) (*pipelinetest.Feed, *pipeline.Runtime) {
	t.Helper()
	feed := pipelinetest.NewFeed("in")
	r.From, r.Flow.Window, r.Batch.MaxRecords = feed, 100, 1
	r.Policy.DeadLetter = pipelinetest.NewRecorder("dead")
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{r})
	require.NoError(t, err)
	chain := middleware.New(reg, opts)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
	require.NoError(t, rt.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, rt.Stop(context.Background())) })
	return feed, rt
}

// A batch beyond its longest hold gives its place to the next, as long as few are stuck.
func TestStuckBatchesEndTheProcess(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	feed, rt := startBatch(t, pipeline.Route{
		Policy: pipeline.Policy{LongestHold: time.Millisecond},
		HandleBatch: func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
			<-release
			return make([]pipeline.BatchResult, len(msgs))
		},
	}, middleware.Options{MaxStuck: 5})
	defer close(release)
	feed.SendPayloads("1", "2", "3", "4", "5")
	select {
	case err := <-rt.Failed():
		require.ErrorContains(t, err, "5 handlers have not returned within their longest hold")
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the runtime did not fail")
	}
}

// The slow rest of one message delays neither the others of its batch nor the next batches.
func TestThenRunsByItself(t *testing.T) {
	t.Parallel()
	feed, out := pipelinetest.NewFeed("in"), pipelinetest.NewRecorder("out")
	release := make(chan struct{})
	pipelinetest.Start(t, onRoute{pipeline.Route{
		From: feed, To: out, Flow: pipeline.Flow{Window: 100},
		HandleBatch: perMessage(func(m *message.Message) pipeline.BatchResult {
			return pipeline.BatchResult{Then: func(m *message.Message) ([]*message.Message, error) {
				if _, limited := m.Context().Deadline(); !limited {
					return nil, errors.New("no time limit")
				}
				if string(m.Payload) == "slow" {
					<-release
				}
				return []*message.Message{message.NewMessage("", m.Payload)}, nil
			}}
		}),
	}})
	for range 5 { // more than batches at once
		feed.SendPayloads("slow", "fast")
		require.Equal(t, "fast", string((<-feed.Settled()).Message.Payload))
	}
	close(release)
	for range 5 {
		s := <-feed.Settled()
		require.True(t, s.Acked)
		require.Equal(t, "slow", string(s.Message.Payload))
	}
	require.Len(t, out.Messages(), 10)
	for _, m := range out.Messages() {
		require.NotEmpty(t, m.Metadata.Get("correlation_id"))
	}
}

// A message that was delivered too often reaches no batch.
func TestABatchHasNoRefusedMessages(t *testing.T) {
	t.Parallel()
	feed, dead := pipelinetest.NewFeed("in"), pipelinetest.NewRecorder("dead")
	seen := make(chan int64, 10)
	pipelinetest.Start(t, onRoute{pipeline.Route{
		From: feed, Policy: pipeline.Policy{DeadLetter: dead, MaxDeliveries: 2},
		HandleBatch: perMessage(func(m *message.Message) pipeline.BatchResult {
			seen <- pipeline.DeliveryFrom(m.Context()).Delivered
			return pipeline.BatchResult{Err: errBoom}
		}),
	}})
	feed.SendPayloads("x")
	require.False(t, (<-feed.Settled()).Acked)
	require.True(t, (<-feed.Settled()).Acked)
	require.Equal(t, pipeline.ClassDeliveryLimit, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
	require.Len(t, seen, 2)
}
