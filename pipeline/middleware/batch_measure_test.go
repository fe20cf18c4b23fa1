package middleware_test

import (
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// Each message of a batch is watched and measured by itself.
func TestABatchIsMeasured(t *testing.T) {
	t.Parallel()
	w := watch{make(chan pipeline.Origin, 9), make(chan pipeline.Origin, 9)}
	b := batchOf{payloads: []string{"good", "permanent", "bad"}, route: pipeline.Route{Activity: w, To: pipelinetest.NewRecorder("out")}}
	b.route.HandleBatch = perMessage(func(m *message.Message) pipeline.BatchResult {
		return pipeline.BatchResult{Err: errorsOf[string(m.Payload)], Out: []*message.Message{{}}}
	})
	b.run(t)
	require.Len(t, w.began, 3)
	require.Len(t, w.ended, 3)
	counts, sums := measured(t, b.reg)
	delete(counts, "last_message_timestamp_seconds")
	require.Equal(t, map[string]float64{
		"messages_total": 3, "message_duration_seconds": 3, "messages_in_flight": 0, "handlers_stuck": 0,
		"batch_records": 1, "batch_duration_seconds": 1,
	}, counts)
	require.Equal(t, 3.0, sums["batch_records"])
	out := b.route.To.(*pipelinetest.Recorder).Messages()
	require.Len(t, out, 1)
	require.Equal(t, "1", out[0].Metadata.Get("correlation_id"))
}

// measured returns the values of counters and gauges, and the counts and sums of histograms.
func measured(t *testing.T, reg *pipeline.Registry) (counts, sums map[string]float64) {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(reg.Collectors()...)
	families, err := all.Gather()
	require.NoError(t, err)
	counts, sums = map[string]float64{}, map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "millrace_")
			counts[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			sums[name] += m.GetHistogram().GetSampleSum()
		}
	}
	return counts, sums
}

// A message is in flight from its receipt on, also while it waits for its batch.
func TestAMessageIsMeasuredFromItsReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, feed := watch{make(chan pipeline.Origin, 9), make(chan pipeline.Origin, 9)}, pipelinetest.NewFeed("in")
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{pipeline.Route{
			From: feed, Activity: w, Flow: pipeline.Flow{Window: 10}, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Batch: pipeline.Batch{MaxBytes: 8, Linger: 5 * time.Second}, HandleBatch: perMessage(func(*message.Message) pipeline.BatchResult { return pipeline.BatchResult{} }),
		}})
		require.NoError(t, err)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
		require.NoError(t, rt.Start(t.Context()))
		feed.SendPayloads("12345")
		synctest.Wait()
		require.Len(t, w.began, 1)
		time.Sleep(3 * time.Second)
		feed.SendPayloads("12345") // has no room in the batch
		synctest.Wait()
		require.Len(t, w.began, 2)
		counts, _ := measured(t, reg)
		require.Equal(t, 1.0, counts["messages_in_flight"], "the first batch is full, so it did not wait for the linger")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.Len(t, w.ended, 2)
		counts, sums := measured(t, reg)
		require.Zero(t, counts["messages_in_flight"])
		require.Equal(t, 8.0, sums["message_duration_seconds"], "3 s and 5 s")
		require.NoError(t, rt.Stop(t.Context()))
	})
}

// A panic of the chain, or the end of the goroutine, is logged and counted, and nacks its message
// alone.
func TestAPanicOutsideOfTheHandler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then message.HandlerFunc
		log  string
	}{
		"panic":  {nil, "panic outside of the handler: ouch"},
		"goexit": {func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }, "runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log pipelinetest.Buffer
			b := batchOf{payloads: []string{"good", "bad"}, log: slog.New(slog.NewTextHandler(&log, nil))}
			b.route.Policy.Retry = pipeline.Retry{Max: 9, Payload: func([]byte, int) ([]byte, error) { panic("ouch") }}
			b.route.HandleBatch = perMessage(func(m *message.Message) pipeline.BatchResult {
				if string(m.Payload) == "good" {
					return pipeline.BatchResult{}
				}
				return pipeline.BatchResult{Err: errBoom, Then: tt.then}
			})
			require.Equal(t, map[string]bool{"good": true, "bad": false}, b.run(t))
			// The panic is logged after the nack.
			require.Eventually(t, func() bool { return strings.Contains(log.String(), tt.log) }, 2*time.Minute, time.Millisecond)
			require.Contains(t, log.String(), "outcome=nacked")
			counts, _ := measured(t, b.reg)
			require.Equal(t, 2.0, counts["messages_total"])
		})
	}
}

// A batch has a span that is linked to those of its messages.
func TestTheSpansOfABatch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		sampled  bool
		payloads []string
		spans    []string
	}{
		{true, []string{"1", "2"}, []string{"batch toy.route", "process toy.route", "process toy.route", "send out"}},
		{true, []string{"1"}, []string{"process toy.route", "send out"}},
		{false, []string{"1", "2"}, nil},
	} {
		spans := tracetest.NewSpanRecorder()
		sampler := sdktrace.NeverSample()
		if tt.sampled {
			sampler = sdktrace.AlwaysSample()
		}
		b := batchOf{
			tracer:   sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler)),
			payloads: tt.payloads, route: pipeline.Route{HandleBatch: echo, To: pipelinetest.NewRecorder("out")},
		}
		b.run(t)
		var names, linked []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
			for _, l := range s.Links() {
				linked = append(linked, l.SpanContext.SpanID().String())
			}
		}
		slices.Sort(names)
		require.Equal(t, tt.spans, names)
		if len(tt.payloads) == 2 && tt.sampled {
			require.Len(t, linked, 4, "the call and the publish are for both messages")
		}
		for _, m := range b.route.To.(*pipelinetest.Recorder).Messages() {
			require.Equal(t, tt.sampled, m.Metadata.Get(pipeline.MetaTraceParent) != "" && strings.HasSuffix(m.Metadata.Get(pipeline.MetaTraceParent), "-01"))
		}
	}
}

// A panic outside of the handler acks nothing.
func TestABatchWhoseWatchPanics(t *testing.T) {
	t.Parallel()
	b := batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{HandleBatch: echo, Activity: panicWatch{}}}
	require.Equal(t, map[string]bool{"1": false, "2": false}, b.run(t))
}

type panicWatch struct{}

func (panicWatch) Began(pipeline.Origin) { panic("the watch's own") }
func (panicWatch) Ended(pipeline.Origin) {}
