package kafka

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// route is a plugin with one route.
type route struct{ pipeline.Route }

func (route) Name() string { return "toy" }

func (r route) Register(reg *pipeline.Registry) error {
	reg.Route(r.Route)
	return nil
}

// Each record of a batch has its own outcome. A second instance takes half of the partitions in the
// middle of the batches. Each record is handled once, and the mark reaches the end.
func TestBatchesThroughARebalance(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic, retries, dead := topicFor(t, p), topicFor(t, p), topicFor(t, p)
		const records = 400
		publish(t, p, topic, texts(numbered(records)...)...)
		var mu sync.Mutex
		runs, batches := map[string]int{}, 0
		run := func() *pipeline.Runtime {
			reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, route{pipeline.Route{
				Name: "toy.batch", From: p.Source(topic, topic), Flow: pipeline.Flow{Window: 16}, Batch: pipeline.Batch{MaxRecords: 8},
				Policy: pipeline.Policy{DeadLetter: p.Sink(dead), Retry: pipeline.Retry{To: p.Sink(retries), ReadElsewhere: true, Max: 3, Backoff: pipeline.Backoff{First: time.Minute}}},
				HandleBatch: func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
					<-time.After(20 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					batches++
					results := make([]pipeline.BatchResult, len(msgs))
					for i, m := range msgs {
						text := string(m.Payload)
						runs[text]++
						switch text[len(text)-1] {
						case '3':
							results[i].Err = errors.New("try again")
						case '7':
							results[i].Err = pipeline.Permanent(errors.New("never"))
						}
					}
					return results
				},
			}})
			require.NoError(t, err)
			rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
			require.NoError(t, rt.Start(t.Context()))
			t.Cleanup(func() { require.NoError(t, rt.Stop(context.Background())) })
			return rt
		}
		handled := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(runs) >= n
			}, 2*time.Minute, time.Millisecond)
		}
		first := run()
		handled(40)
		run()
		handled(120)
		require.NoError(t, first.Stop(t.Context()))
		handled(records)
		marked := p.metrics.bySubscription[countMarked].WithLabelValues(topic, topic)
		require.Eventually(t, func() bool { return testutil.ToFloat64(marked) == records }, 2*time.Minute, 10*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for text, n := range runs {
			require.Equal(t, 1, n, text)
		}
		require.Less(t, batches, records, "records were handled together")
		for sink, last := range map[string]byte{retries: '3', dead: '7'} {
			_, out := subscribe(t, p.Source(sink, sink), pipeline.Flow{})
			for range records / 10 {
				m := next(t, out)
				require.Equal(t, last, m.Payload[len(m.Payload)-1])
				m.Ack()
			}
		}
	})
}
