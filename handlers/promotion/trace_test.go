package promotion_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// tollgate stands before the Money API, refuses the first call of every key, and notes the trace of
// each call.
type tollgate struct {
	*httptest.Server
	mu    sync.Mutex
	calls map[string][]trace.SpanContext // by idempotency key
}

func newTollgate(t *testing.T, api string) *tollgate {
	to, err := url.Parse(api)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	g := &tollgate{calls: map[string][]trace.SpanContext{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(r.Header))
		key := r.Header.Get("Idempotency-Key")
		g.mu.Lock()
		g.calls[key] = append(g.calls[key], trace.SpanContextFromContext(ctx))
		first := len(g.calls[key]) == 1
		g.mu.Unlock()
		if first {
			w.WriteHeader(http.StatusRequestTimeout)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

// The trace of a record's publisher joins all steps of its payout: acceptance, stream entry,
// refused call, retry record, and the call that paid. Each is a child of the one before.
//
// The test fails when the stream sink, the retry record or the client leaves the trace out.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		var gate *tollgate
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			gate = newTollgate(t, c.MoneyAPI.URL)
			c.MoneyAPI.URL = gate.URL
			c.MoneyAPI.CallTimeout = 14 * time.Second
			c.Feeder.GracePeriod = time.Minute // it must not overtake the retry record
		})
		spans := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test", Logger: pipelinetest.Logger(t), Tracer: provider}, sys.all...)
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{})
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: 10 * time.Second})
		require.NoError(t, rt.Start(t.Context()))

		ctx, root := provider.Tracer("campaign").Start(t.Context(), "publish")
		msg := message.NewMessage("", []byte(points(7, 7)[0]))
		msg.Metadata.Set(pipeline.MetaKey, "7")
		pipeline.InjectTrace(ctx, msg.Metadata)
		require.NoError(t, sys.kafka.Sink(publish).Publish(t.Context(), msg))
		root.End()
		require.EqualValues(t, 1, sys.settle("POINT", 1).Paid)
		page, err := sys.load("campaigns/payout", "payout", operate.Input{"payout": {"POINT:1:7"}})
		require.NoError(t, err)
		require.NoError(t, rt.Stop(context.Background()))

		id := root.SpanContext().TraceID().String()
		require.Contains(t, page.(console.Blocks)[0].(console.Record).Fields, console.Stat{Name: "Trace", Cell: console.Trace(id)})
		var e campaign.Explained
		sys.json(&e, "campaign", "explain", "POINT", "1", "7")
		require.Equal(t, id, e.TraceID)
		require.Regexp(t, `\n  trace +`+id+`, span `+e.SpanID+`\n`, sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "7"))

		ours := map[trace.SpanID]sdktrace.ReadOnlySpan{}
		for _, s := range spans.Ended() {
			if s.SpanContext().TraceID() == root.SpanContext().TraceID() {
				ours[s.SpanContext().SpanID()] = s
			}
		}
		calls := gate.calls["POINT:1:7"]
		require.Len(t, calls, 2)
		path := func(from trace.SpanContext) (names []string) {
			for id := from.SpanID(); id.IsValid(); {
				s, known := ours[id]
				require.True(t, known, "span %s of %v belongs to another trace", id, names)
				names = append(names, s.Name())
				if place, _, found := strings.Cut(attribute(s, "millrace.origin"), "@"); found {
					name, _, _ := strings.Cut(place, "/") // whatever the partition
					names[len(names)-1] += " " + name
				}
				id = s.Parent().SpanID()
			}
			return names
		}
		// The span of a publish is between the one of the message and the one of what was published.
		accepted := []string{"process promotion.point.accept " + publish, "publish"}
		explained, err := trace.SpanIDFromHex(e.SpanID)
		require.NoError(t, err)
		require.Equal(t, accepted, path(trace.NewSpanContext(trace.SpanContextConfig{SpanID: explained})), "the span in which it was accepted")
		entry := append([]string{"process promotion.point.stream campaign-promotion-stream:POINT:1", "send campaign-promotion-stream:POINT:<id>"}, accepted...)
		require.Equal(t, append([]string{"money chargePoint"}, entry...), path(calls[0]))
		require.Equal(t, append([]string{"money chargePoint", "process promotion.point.retry campaign-promotion-point-retry", "send campaign-promotion-point-retry"}, entry...), path(calls[1]),
			"the retry record is a child of the entry whose call was refused")
		for _, s := range ours {
			for _, a := range s.Attributes() {
				require.NotContains(t, a.Value.String(), "POINT:1:7", "the key of a payout names a person: %s", a.Key)
			}
			require.NotContains(t, s.Status().Description, "POINT:1:7")
			if s.Name() == "money chargePoint" {
				require.Equal(t, "POST", attribute(s, "http.request.method"))
				require.Equal(t, "127.0.0.1", attribute(s, "server.address"))
			}
		}
	})
}

func attribute(s sdktrace.ReadOnlySpan, name string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == name {
			return a.Value.AsString()
		}
	}
	return ""
}
