package middleware_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// onRoute is a plugin of one route, for tests of the chain.
type onRoute struct{ pipeline.Route }

func (onRoute) Name() string { return "toy" }

func (p onRoute) Register(r *pipeline.Registry) error {
	p.Route.Name = "toy.route"
	if p.Policy.DeadLetter == nil {
		p.Policy.DeadLetter = pipeline.Drop
	}
	p.Policy.Retry.ReadElsewhere = true // by the test
	r.Route(p.Route)
	return nil
}

// retryFeed is a feed of what was published to a retry topic.
type retryFeed struct {
	*pipelinetest.Feed
	at pipeline.Endpoint
}

func (f retryFeed) Describe() pipeline.Endpoint { return f.at }

func handler(f func(context.Context, string) error) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) { return nil, f(m.Context(), string(m.Payload)) }
}

// settle sends one payload through the route and returns how its delivery ended.
func settle(t *testing.T, route pipeline.Route, msg *message.Message) pipelinetest.Settled {
	t.Helper()
	feed := pipelinetest.NewFeed("in")
	route.From = feed
	if to := route.Policy.Retry.To; to != nil && msg.Metadata.Get(pipeline.MetaRetryOf) != "" {
		route.From = retryFeed{feed, to.Describe()}
	}
	pipelinetest.Start(t, onRoute{route})
	feed.Send(msg)
	select {
	case s := <-feed.Settled():
		return s
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the message was never settled")
		return pipelinetest.Settled{}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	tests := []struct {
		name    string
		err     error
		max     int
		attempt string // retries already spent, as the header says
		noRetry bool
		only    bool // Retry.OnlyRetryAfter
		acked   bool
		retried bool
		dead    string // class of the dead letter
		due     time.Duration
	}{
		{name: "nil acks", acked: true},
		{name: "an error goes to the retry topic", err: boom, acked: true, retried: true, due: 800 * time.Millisecond},
		{name: "RetryAfter sets the due time", err: pipeline.RetryAfter(boom, time.Hour), acked: true, retried: true, due: time.Hour},
		{name: "RetryAfter survives wrapping", err: errors.Join(errors.New("more"), pipeline.RetryAfter(boom, time.Hour)), acked: true, retried: true, due: time.Hour},
		{name: "the last retry", err: boom, max: 5, attempt: "4", acked: true, retried: true},
		{name: "retries spent", err: boom, max: 5, attempt: "5", acked: true, dead: "error"},
		{name: "max 0 leaves the count to the handler", err: boom, attempt: "99", acked: true, retried: true},
		{name: "permanent is dead at once", err: pipeline.Permanent(boom), acked: true, dead: "permanent"},
		{name: "class is kept", err: pipeline.WithClass(pipeline.Permanent(boom), "conflict"), acked: true, dead: "conflict"},
		{name: "without a retry topic it is nacked", err: boom, noRetry: true},
		{name: "OnlyRetryAfter nacks an error without a delay", err: boom, only: true},
		{name: "OnlyRetryAfter retries what was", err: pipeline.RetryAfter(boom, time.Hour), only: true, acked: true, retried: true, due: time.Hour},
		{name: "a header that is no number counts as none", err: boom, max: 5, attempt: "many", acked: true, retried: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			retry, dead := pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
			route := pipeline.Route{Handle: handler(func(context.Context, string) error { return tt.err })}
			route.Policy = pipeline.Policy{DeadLetter: dead, Retry: pipeline.Retry{To: retry, Max: tt.max, OnlyRetryAfter: tt.only}}
			if tt.noRetry {
				route.Policy.Retry.To = nil
			}
			msg := message.NewMessage("1", []byte(`{"n":1}`))
			msg.Metadata.Set(pipeline.MetaKey, "777")
			msg.Metadata.Set("own", "header")
			if tt.attempt != "" {
				msg.Metadata.Set(pipeline.MetaAttempt, tt.attempt)
				msg.Metadata.Set(pipeline.MetaRetryOf, "toy.route")
			}
			before := time.Now()
			got := settle(t, route, msg)

			require.Equal(t, tt.acked, got.Acked)
			if !tt.retried {
				require.Empty(t, retry.Messages())
			} else {
				require.Len(t, retry.Messages(), 1)
				m := retry.Messages()[0]
				require.JSONEq(t, `{"n":1}`, string(m.Payload))
				require.Equal(t, "777", m.Metadata.Get(pipeline.MetaKey))
				require.Equal(t, "header", m.Metadata.Get("own"))
				spent, _ := strconv.Atoi(tt.attempt)
				require.Equal(t, strconv.Itoa(spent+1), m.Metadata.Get(pipeline.MetaAttempt))
				due, err := time.Parse(time.RFC3339Nano, m.Metadata.Get(pipeline.MetaDue))
				require.NoError(t, err)
				require.False(t, due.Before(before.Add(tt.due)), "due %s is less than %s after %s", due, tt.due, before)
			}
			if tt.dead == "" {
				require.Empty(t, dead.Messages())
			} else {
				require.Len(t, dead.Messages(), 1)
				m := dead.Messages()[0]
				require.JSONEq(t, `{"n":1}`, string(m.Payload))
				require.Equal(t, tt.dead, m.Metadata.Get(pipeline.MetaDeadClass))
				require.Equal(t, "boom", m.Metadata.Get(pipeline.MetaDeadError))
				require.Equal(t, "toy.route", m.Metadata.Get(pipeline.MetaDeadHandler))
				require.Equal(t, msg.UUID, m.Metadata.Get(pipeline.MetaDeadUUID))
				require.Equal(t, "in@1", m.Metadata.Get(pipeline.MetaDeadOrigin))
				require.Equal(t, "header", m.Metadata.Get("own"))
				require.NotEmpty(t, m.Metadata.Get(pipeline.MetaDeadFailedAt))
			}
		})
	}
}

func TestRetryPayloadIsMadeFromThePayloadAsItCame(t *testing.T) {
	t.Parallel()
	retry := pipelinetest.NewRecorder("retry")
	route := pipeline.Route{
		Handle: func(m *message.Message) ([]*message.Message, error) {
			m.Payload = []byte("scribbled over")
			return nil, errors.New("boom")
		},
		Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry, Payload: func(p []byte, n int) ([]byte, error) {
			return append(p, '#', byte('0'+n)), nil
		}}},
	}
	require.True(t, settle(t, route, message.NewMessage("1", []byte("as it came"))).Acked)
	require.Equal(t, "as it came#1", string(retry.Messages()[0].Payload))
}

func TestAFailedRetryPublishNacksAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	retry, feed := pipelinetest.NewRecorder("retry"), pipelinetest.NewFeed("in")
	retry.FailWith(errors.New("no broker"))
	pipelinetest.Start(t, onRoute{pipeline.Route{From: feed, Handle: handler(func(context.Context, string) error { return errors.New("boom") }),
		Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry}}}})
	feed.SendPayloads("x")
	require.False(t, (<-feed.Settled()).Acked, "acked although the retry record is not durable")
	retry.FailWith(nil)
	for s := range feed.Settled() {
		if s.Acked {
			break
		}
	}
	require.Len(t, retry.Messages(), 1)
}

func TestOutputIsPublishedInsideTheChain(t *testing.T) {
	t.Parallel()
	to, feed := pipelinetest.NewRecorder("to"), pipelinetest.NewFeed("in")
	to.FailWith(errors.New("no broker"))
	pipelinetest.Start(t, onRoute{pipeline.Route{From: feed, To: to, Handle: func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("out", m.Payload)}, nil
	}}})
	feed.SendPayloads("x")
	require.False(t, (<-feed.Settled()).Acked, "acked although the output is not durable")
	to.FailWith(nil)
	for s := range feed.Settled() {
		if s.Acked {
			break
		}
	}
	require.Len(t, to.Messages(), 1)
	require.Equal(t, "1", to.Messages()[0].Metadata.Get("correlation_id"))
}

func TestOutputWithoutSinkIsDeadLettered(t *testing.T) {
	t.Parallel()
	dead := pipelinetest.NewRecorder("dead")
	route := pipeline.Route{Policy: pipeline.Policy{DeadLetter: dead}, Handle: func(m *message.Message) ([]*message.Message, error) {
		return message.Messages{m.Copy()}, nil
	}}
	require.True(t, settle(t, route, message.NewMessage("1", nil)).Acked)
	require.Contains(t, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), "no To")
}

func TestPanic(t *testing.T) {
	t.Parallel()
	panics := handler(func(context.Context, string) error { panic("ouch") })
	t.Run("is retried where there is a retry topic", func(t *testing.T) {
		t.Parallel()
		retry := pipelinetest.NewRecorder("retry")
		require.True(t, settle(t, pipeline.Route{Handle: panics, Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry}}}, message.NewMessage("1", nil)).Acked)
		require.Len(t, retry.Messages(), 1)
	})
	t.Run("is dead-lettered where it would come back at once", func(t *testing.T) {
		t.Parallel()
		dead := pipelinetest.NewRecorder("dead")
		require.True(t, settle(t, pipeline.Route{Handle: panics, Policy: pipeline.Policy{DeadLetter: dead}}, message.NewMessage("1", nil)).Acked)
		require.Equal(t, "panic", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
		require.Contains(t, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), "ouch")
	})
	t.Run("of the sink is the message's failure", func(t *testing.T) {
		t.Parallel()
		dead := pipelinetest.NewRecorder("dead")
		route := pipeline.Route{To: panicSink{pipelinetest.NewRecorder("out")}, Policy: pipeline.Policy{DeadLetter: dead}, Handle: func(m *message.Message) ([]*message.Message, error) {
			return message.Messages{m.Copy()}, nil
		}}
		require.True(t, settle(t, route, message.NewMessage("1", nil)).Acked)
		require.Equal(t, "panic", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
	})
}

type panicSink struct{ pipeline.Sink }

func (panicSink) Publish(context.Context, ...*message.Message) error { panic("the sink's own") }

// Messages that were not made by NewMessage.
func TestOutputsThatAreNotWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out  *message.Message
		dead string
	}{
		"no metadata": {&message.Message{UUID: "2"}, ""},
		"nil":         {nil, "the handler's message 1 of 1 is nil"},
	} {
		out, dead := pipelinetest.NewRecorder("out"), pipelinetest.NewRecorder("dead")
		route := pipeline.Route{To: out, Policy: pipeline.Policy{DeadLetter: dead}, Handle: func(*message.Message) ([]*message.Message, error) {
			return message.Messages{c.out}, nil
		}}
		require.True(t, settle(t, route, message.NewMessage("1", nil)).Acked, name)
		if c.dead == "" {
			require.Len(t, out.Messages(), 1, name)
			continue
		}
		require.Contains(t, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), c.dead)
	}
}

// A publish must not inherit the handler's exceeded deadline (19,391 redeliveries in 0.3 s
// otherwise).
func TestTimeoutBoundsOnlyTheHandler(t *testing.T) {
	t.Parallel()
	retry := pipelinetest.NewRecorder("retry")
	route := pipeline.Route{
		Handle: handler(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }),
		Policy: pipeline.Policy{Timeout: time.Millisecond, Retry: pipeline.Retry{To: retry}},
	}
	got := settle(t, route, message.NewMessage("1", nil))
	require.True(t, got.Acked)
	require.NoError(t, got.Message.Context().Err(), "the message's context was not restored")
	require.Len(t, retry.Messages(), 1)
}

func TestHandlersThatNeverReturnFailTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := pipelinetest.NewFeed("in")
		reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{pipeline.Route{From: feed, Handle: nothing}})
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{MaxStuck: 3})
		release := make(chan struct{})
		handle, _ := chain.Wrap(pipeline.Route{Name: "slow", From: feed, Policy: pipeline.Policy{LongestHold: time.Minute},
			Handle: handler(func(context.Context, string) error { <-release; return nil })})
		for range 2 {
			go func() { _, _ = handle(message.NewMessage("1", nil)) }()
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		select {
		case err := <-chain.Failed():
			require.FailNow(t, "failed too early", err)
		default:
		}
		require.Equal(t, 2.0, stuck(t, reg))
		go func() { _, _ = handle(message.NewMessage("1", nil)) }()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.ErrorContains(t, <-chain.Failed(), "3 handlers have not returned")
		close(release)
		synctest.Wait()
		require.Equal(t, 0.0, stuck(t, reg))
	})
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

func stuck(t *testing.T, reg *pipeline.Registry) float64 {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(reg.Collectors()...)
	families, err := all.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "millrace_handlers_stuck" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	require.FailNow(t, "no gauge millrace_handlers_stuck")
	return 0
}

type watch struct{ began, ended chan pipeline.Origin }

func (w watch) Began(o pipeline.Origin) { w.began <- o }
func (w watch) Ended(o pipeline.Origin) { w.ended <- o }

func TestIdleWatchSeesEveryMessage(t *testing.T) {
	t.Parallel()
	w := watch{make(chan pipeline.Origin, 1), make(chan pipeline.Origin, 1)}
	settle(t, pipeline.Route{Activity: w, Handle: handler(func(context.Context, string) error { panic("even this one") })}, message.NewMessage("1", nil))
	require.Equal(t, "in", (<-w.began).Source)
	require.Equal(t, "in", (<-w.ended).Source)
}

func TestIdleWatchSeesAMessageUntilItsRetryRecordIsDurable(t *testing.T) {
	t.Parallel()
	w := watch{make(chan pipeline.Origin, 1), make(chan pipeline.Origin, 1)}
	retry := pipelinetest.NewRecorder("retry")
	early := false
	settle(t, pipeline.Route{Activity: w, Handle: handler(func(context.Context, string) error { return errors.New("boom") }),
		Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry, Payload: func(p []byte, _ int) ([]byte, error) {
			early = len(w.ended) > 0
			return p, nil
		}}}}, message.NewMessage("1", nil))
	require.False(t, early, "called idle before its retry record was made")
	require.Len(t, w.ended, 1)
}
