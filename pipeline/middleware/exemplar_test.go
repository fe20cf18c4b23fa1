package middleware_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// exemplars returns the exemplars of a histogram of a registry, one map of labels each.
func exemplars(t *testing.T, reg *pipeline.Registry, name string) (all []map[string]string, count uint64) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(reg.Collectors()...)
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			count += m.GetHistogram().GetSampleCount()
			for _, b := range m.GetHistogram().GetBucket() {
				if b.GetExemplar() == nil {
					continue
				}
				labels := map[string]string{}
				for _, l := range b.GetExemplar().GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				all = append(all, labels)
			}
		}
	}
	return all, count
}

// The slow messages of a histogram are found by the trace of one of them.
func TestDurationsHaveTheTraceOfAMessage(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	traced := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	type key struct{}
	handle := func(tracer pipeline.Env) (*pipeline.Registry, *message.Message) {
		reg, err := pipeline.NewRegistry(tracer, onRoute{pipeline.Route{
			From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error { return nil }),
		}})
		require.NoError(t, err)
		run, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
		msg := message.NewMessageWithContext(context.WithValue(t.Context(), key{}, 1), "uuid", []byte("payload"))
		before := msg.Context()
		_, err = run(msg)
		require.NoError(t, err)
		require.Equal(t, before, msg.Context(), "the context is that of the transport again")
		return reg, msg
	}
	reg, _ := handle(pipeline.Env{Tracer: traced})
	all, count := exemplars(t, reg, "millrace_message_duration_seconds")
	require.EqualValues(t, 1, count)
	require.Len(t, recorder.Ended(), 1)
	at := recorder.Ended()[0].SpanContext()
	require.Equal(t, []map[string]string{{"trace_id": at.TraceID().String(), "span_id": at.SpanID().String()}}, all)

	for name, tracer := range map[string]pipeline.Env{
		"off":         {Tracer: noop.NewTracerProvider()},
		"not sampled": {Tracer: sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))},
	} {
		reg, _ = handle(tracer)
		all, count = exemplars(t, reg, "millrace_message_duration_seconds")
		require.EqualValues(t, 1, count, name)
		require.Empty(t, all, name)
	}
}

// The bucket of what is longer than each bound exists once it has an exemplar, and is no bound.
func TestASlowMessageWithATraceIsBeyondTheBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg, err := pipeline.NewRegistry(pipeline.Env{Tracer: sdktrace.NewTracerProvider()}, onRoute{pipeline.Route{
			From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error {
				time.Sleep(time.Hour)
				return nil
			}),
			Policy: pipeline.Policy{Timeout: 2 * time.Hour},
		}})
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{})
		route := reg.Routes()[0]
		run, _ := chain.Wrap(route)
		_, err = run(message.NewMessage("uuid", []byte("payload")))
		require.NoError(t, err)
		longest, beyond := chain.Measures(route.Name).Durations.Quantile(0.5)
		require.True(t, beyond)
		require.InDelta(t, 10, longest, 5, "the last bound")
	})
}

func TestDurationsOfABatchHaveTheTraceOfAMessage(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	b := batchOf{payloads: []string{"one", "two"}, tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))}
	b.route.HandleBatch = perMessage(func(*message.Message) pipeline.BatchResult { return pipeline.BatchResult{} })
	b.run(t)
	spans := map[string]bool{} // of messages
	call := ""
	for _, s := range recorder.Ended() {
		if strings.HasPrefix(s.Name(), "batch ") {
			call = s.SpanContext().SpanID().String()
		} else {
			spans[s.SpanContext().SpanID().String()] = true
		}
	}
	require.Len(t, spans, 2)
	all, _ := exemplars(t, b.reg, "millrace_message_duration_seconds")
	require.NotEmpty(t, all)
	for _, labels := range all {
		require.True(t, spans[labels["span_id"]], labels)
	}
	all, _ = exemplars(t, b.reg, "millrace_batch_duration_seconds")
	require.Len(t, all, 1)
	require.Equal(t, call, all[0]["span_id"])
}
