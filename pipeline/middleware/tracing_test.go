package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// spansOf handles one message of an origin, and returns the spans by name with their attributes as key=value.
func spansOf(t *testing.T, from pipeline.Endpoint, o pipeline.Origin, r pipeline.Route) (map[string]sdktrace.ReadOnlySpan, map[string][]string) {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	r.From = retryFeed{pipelinetest.NewFeed("in"), from}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	reg, err := pipeline.NewRegistry(pipeline.Env{Tracer: provider}, onRoute{r})
	require.NoError(t, err)
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
	msg := message.NewMessageWithContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: o}), "uuid", []byte("payload"))
	_, _ = handle(msg) // what it returns is that the message is nacked
	spans, attrs := map[string]sdktrace.ReadOnlySpan{}, map[string][]string{}
	for _, s := range recorder.Ended() {
		spans[s.Name()] = s
		for _, a := range s.Attributes() {
			attrs[s.Name()] = append(attrs[s.Name()], fmt.Sprint(string(a.Key), "=", a.Value.AsInterface()))
		}
		slices.Sort(attrs[s.Name()])
	}
	return spans, attrs
}

// Spans follow the conventions for messaging, and have neither the key of a message nor the text of its error.
func TestSpansSayWhereAMessageCameFrom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from   pipeline.Endpoint
		origin pipeline.Origin
		want   []string
	}{
		"a record of Kafka": {
			pipeline.Endpoint{Kind: "kafka", Name: "orders"},
			pipeline.Origin{Kind: "kafka", Source: "orders", Position: "orders/3@41", Group: "mill", Key: "ann@example.com"},
			[]string{
				"messaging.consumer.group.name=mill", "messaging.destination.name=orders", "messaging.destination.partition.id=3", "messaging.kafka.offset=41",
				"messaging.operation.name=process", "messaging.operation.type=process", "messaging.system=kafka", "millrace.origin=orders/3@41", "millrace.outcome=acked",
			},
		},
		"a stream of many": {
			pipeline.Endpoint{Kind: "elastic-streams", Name: "orders:<id>"},
			pipeline.Origin{Kind: "elastic-streams", Source: "orders:7", Position: "orders:7@1700000000000-0", Key: "ann@example.com"},
			[]string{
				"messaging.destination.name=orders:7", "messaging.destination.template=orders:<id>", "messaging.message.id=1700000000000-0",
				"messaging.operation.name=process", "messaging.operation.type=process", "messaging.system=redis", "millrace.origin=orders:7@1700000000000-0", "millrace.outcome=acked",
			},
		},
		"a transport without positions": {
			pipeline.Endpoint{Kind: "toy", Name: "in"}, pipeline.Origin{Source: "in"},
			[]string{"messaging.destination.name=in", "messaging.operation.name=process", "messaging.operation.type=process", "messaging.system=toy", "millrace.origin=in", "millrace.outcome=acked"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans, attrs := spansOf(t, c.from, c.origin, pipeline.Route{Handle: handler(func(context.Context, string) error { return nil })})
			require.Equal(t, map[string][]string{"process toy.route": c.want}, attrs)
			require.Equal(t, trace.SpanKindConsumer, spans["process toy.route"].SpanKind())
			require.Equal(t, codes.Unset, spans["process toy.route"].Status().Code)
		})
	}
}

// A message that failed has an error in its span, also when it is acked because its retry record or dead letter goes on.
func TestSpansSayWhatBecameOfAMessage(t *testing.T) {
	t.Parallel()
	failed := errors.New("ann@example.com is unknown")
	for outcome, c := range map[string]struct {
		err    error
		policy pipeline.Policy
		send   string // the producer span
	}{
		"retried": {failed, pipeline.Policy{Retry: pipeline.Retry{To: pipelinetest.NewRecorder("again"), Max: 3}}, "send again"},
		"dead":    {pipeline.Permanent(failed), pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")}, "send dead"},
		"dropped": {pipeline.Permanent(failed), pipeline.Policy{DeadLetter: pipeline.Drop}, ""},
		"nacked":  {failed, pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")}, ""},
	} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			spans, attrs := spansOf(t, pipeline.Endpoint{Kind: "toy", Name: "in"}, pipeline.Origin{Source: "in"},
				pipeline.Route{Policy: c.policy, Handle: handler(func(context.Context, string) error { return c.err })})
			process := spans["process toy.route"]
			require.Contains(t, attrs["process toy.route"], "millrace.outcome="+outcome)
			require.Contains(t, attrs["process toy.route"], "error.type="+pipeline.Class(c.err))
			require.Equal(t, sdktrace.Status{Code: codes.Error, Description: pipeline.Class(c.err)}, process.Status())
			if c.send == "" {
				require.Len(t, spans, 1)
				return
			}
			send := spans[c.send]
			require.NotNil(t, send, "%v", attrs)
			require.Equal(t, trace.SpanKindProducer, send.SpanKind())
			require.Equal(t, process.SpanContext().SpanID(), send.Parent().SpanID())
			require.Equal(t, codes.Unset, send.Status().Code)
		})
	}
}

// A dead letter names the trace of the message, and the span that sent it.
func TestADeadLetterNamesItsTrace(t *testing.T) {
	t.Parallel()
	dead := pipelinetest.NewRecorder("dead")
	failed := pipeline.Permanent(errors.New("boom"))
	spans, _ := spansOf(t, pipeline.Endpoint{Kind: "toy", Name: "in"}, pipeline.Origin{Source: "in"}, pipeline.Route{
		Policy: pipeline.Policy{DeadLetter: dead}, Handle: handler(func(context.Context, string) error { return failed }),
	})
	require.Len(t, dead.Messages(), 1)
	at := trace.SpanContextFromContext(pipeline.ExtractTrace(context.Background(), dead.Messages()[0]))
	require.Equal(t, spans["process toy.route"].SpanContext().TraceID(), at.TraceID())
	require.Equal(t, spans["send dead"].SpanContext().SpanID(), at.SpanID())
}

// What a handler returns is sent in a producer span, which the record continues.
func TestSpansOfWhatAHandlerReturns(t *testing.T) {
	t.Parallel()
	out := pipelinetest.NewRecorder("out")
	spans, attrs := spansOf(t, pipeline.Endpoint{Kind: "toy", Name: "in"}, pipeline.Origin{Source: "in"}, pipeline.Route{
		To: out,
		Handle: func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("a", nil), message.NewMessage("b", nil)}, nil
		},
	})
	send := spans["send out"]
	require.NotNil(t, send)
	require.Equal(t, spans["process toy.route"].SpanContext().SpanID(), send.Parent().SpanID())
	for _, want := range []string{"messaging.batch.message_count=2", "messaging.destination.name=out", "messaging.operation.name=send", "messaging.operation.type=send"} {
		require.Contains(t, attrs["send out"], want)
	}
	require.Len(t, out.Messages(), 2)
	for _, m := range out.Messages() {
		continued := trace.SpanContextFromContext(pipeline.ExtractTrace(context.Background(), m))
		require.Equal(t, send.SpanContext().SpanID(), continued.SpanID())
	}
}

// The log line about a message that failed names its trace.
func TestTheLineAboutAFailureNamesItsTrace(t *testing.T) {
	t.Parallel()
	var log pipelinetest.Buffer
	recorder := tracetest.NewSpanRecorder()
	env := pipeline.Env{
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)),
		Logger: slog.New(logs.WithTrace(slog.NewTextHandler(&log, nil))),
	}
	reg, err := pipeline.NewRegistry(env, onRoute{pipeline.Route{
		From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error { return errors.New("boom") }),
	}})
	require.NoError(t, err)
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
	_, _ = handle(message.NewMessageWithContext(t.Context(), "uuid", nil))
	require.Len(t, recorder.Ended(), 1)
	require.Contains(t, log.String(), "message not handled")
	require.Contains(t, log.String(), "trace_id="+recorder.Ended()[0].SpanContext().TraceID().String())
}
