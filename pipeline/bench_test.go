package pipeline_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
)

// inFlight is how many messages of the benchmark are in flight.
const inFlight = 256

// flood is a source of count messages. done is closed when all are acked.
type flood struct {
	count int
	done  chan struct{}
}

func (flood) Describe() pipeline.Endpoint { return pipeline.Endpoint{Kind: "flood", Name: "flood"} }

func (f flood) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	var life *pipeline.Life
	life = pipeline.NewLife(0, func(ctx context.Context) error {
		ctx = pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{Kind: "flood", Source: "flood", Position: "flood@1"}})
		sent := make(chan *message.Message, inFlight)
		go func() {
			defer close(f.done)
			for m := range sent {
				<-m.Acked()
			}
		}()
		for range f.count {
			m := message.NewMessageWithContext(ctx, "1", []byte("payload"))
			sent <- m
			life.Out <- m
		}
		close(sent)
		<-f.done
		return nil
	})
	return life, nil
}

// BenchmarkMessage measures a message through Runtime, Router and chain, without transport.
func BenchmarkMessage(b *testing.B) {
	var calls atomic.Int64
	for name, handle := range map[string]func(*pipeline.Route){
		"single": func(r *pipeline.Route) { r.Handle = ack },
		"batch": func(r *pipeline.Route) {
			r.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
				calls.Add(1)
				return make([]pipeline.BatchResult, len(msgs))
			}
		},
		"batch then": func(r *pipeline.Route) {
			r.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
				calls.Add(1)
				results := make([]pipeline.BatchResult, len(msgs))
				for i := range results {
					results[i].Then = ack
				}
				return results
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			source := flood{b.N, make(chan struct{})}
			route := pipeline.Route{Name: "bench", From: source, Policy: lossy}
			handle(&route)
			reg, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"bench", func(r *pipeline.Registry) { r.Route(route) }})
			require.NoError(b, err)
			rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
			b.ReportAllocs()
			require.NoError(b, rt.Start(b.Context()))
			<-source.done
			b.StopTimer()
			if n := calls.Swap(0); n > 0 {
				b.ReportMetric(float64(b.N)/float64(n), "messages/batch")
			}
			require.NoError(b, rt.Stop(b.Context()))
		})
	}
}
