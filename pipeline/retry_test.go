package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// retrying returns a plugin whose route "orders" retries twice.
func retrying(topics *pipelinetest.Topics, handle message.HandlerFunc) plugin {
	return plugin{"orders", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{
			Name: "orders", From: topics.Source("orders", "g"), Handle: handle,
			Policy: pipeline.Policy{
				DeadLetter: topics.Sink("orders-dead"),
				Retry:      pipeline.RetryVia(topics, "orders-retry", "g-retry", 2, pipeline.Backoff{First: time.Millisecond}),
			},
		})
	}}
}

func TestOneDeclarationAddsTheRouteOfTheRetryTopic(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	reg, err := pipeline.NewRegistry(pipeline.Env{}, retrying(&topics, ack))
	require.NoError(t, err)
	routes := reg.Routes()
	require.Len(t, routes, 2)
	require.Equal(t, "orders.retry", routes[1].Name)
	require.Equal(t, "orders-retry", routes[1].From.Describe().Name)
	for _, r := range routes {
		require.Equal(t, "orders-retry", r.Policy.Retry.To.Describe().Name)
		require.Equal(t, 2, r.Policy.Retry.Max)
		require.Equal(t, "orders-dead", r.Policy.DeadLetter.Describe().Name)
		require.True(t, r.Policy.Retry.TakesReplays, "the retry topic has the same handler")
	}
	require.Equal(t, []string{"orders", "orders.retry"}, reg.RetriesInto(routes[1].From.Describe()))
}

func TestAMessageFailsInTheRouteAndInItsRetryRoute(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	attempts := make(chan string, 10)
	pipelinetest.Start(t, retrying(&topics, func(m *message.Message) ([]*message.Message, error) {
		attempts <- pipeline.DeliveryFrom(m.Context()).Source
		return nil, errors.New("not now")
	}))
	topics.Feed("orders").SendPayloads("x")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dead, err := topics.Published("orders-dead").Wait(ctx, 1)
	require.NoError(t, err)
	require.Equal(t, "x", string(dead[0].Payload))
	require.Equal(t, "3", dead[0].Metadata.Get(pipeline.MetaDeadAttempts))
	require.Len(t, attempts, 3)
	require.Equal(t, "orders", <-attempts)
	require.Equal(t, "orders-retry", <-attempts)
	require.Equal(t, "orders-retry", <-attempts)
}

func TestARetryWithMistakesIsRefused(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	for name, tc := range map[string]struct {
		retry pipeline.Retry
		extra string // a further route
		want  string
	}{
		"no topic":        {pipeline.Retry{From: topics.Source("r", "g")}, "", "route orders: Policy.Retry has From or TakesReplays, and no retry topic: set Retry.To"},
		"another topic":   {pipeline.Retry{To: topics.Sink("r"), From: topics.Source("s", "g")}, "", "route orders: no route reads its retry topic feed r: set Retry.From to read it"},
		"a second reader": {pipeline.Retry{To: topics.Sink("r"), From: topics.Source("r", "g")}, "r", "routes orders.retry, extra read the retry topic feed r"},
	} {
		_, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"orders", func(r *pipeline.Registry) {
			r.Route(pipeline.Route{Name: "orders", From: topics.Source("orders", "g"), Handle: ack, Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: tc.retry}})
			if tc.extra != "" {
				r.Route(pipeline.Route{Name: "extra", From: topics.Source(tc.extra, "g"), Handle: ack, Policy: lossy})
			}
		}})
		require.ErrorContains(t, err, tc.want, name)
	}
	_, err := pipeline.NewRegistry(pipeline.Env{}, retrying(&topics, ack), plugin{"other", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "orders.retry", From: topics.Source("other", "g"), Handle: ack, Policy: lossy})
	}})
	require.ErrorContains(t, err, `route "orders.retry" is already registered by plugin orders`)
}

// grouped is a source of a consumer group.
type grouped struct {
	pipeline.Source
	at pipeline.Endpoint
}

func (g grouped) Describe() pipeline.Endpoint { return g.at }

// Each of two routes with one group would get a part of the messages, and the effects of the rest would be missing.
func TestTwoRoutesDoNotShareAGroup(t *testing.T) {
	t.Parallel()
	register := func(groups ...string) error {
		_, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"orders", func(r *pipeline.Registry) {
			for i, group := range groups {
				from := grouped{pipelinetest.NewFeed("orders"), pipeline.Endpoint{Kind: "kafka", Name: "orders", Group: group}}
				r.Route(pipeline.Route{Name: fmt.Sprint("route", i), From: from, Handle: ack, Policy: lossy})
			}
		}})
		return err
	}
	require.NoError(t, register("a", "b"))
	require.NoError(t, register("", ""), "each of which gets all messages")
	require.ErrorContains(t, register("a", "b", "a"), "routes route0 and route2 read kafka orders (a) with one consumer group, so each message would come to only one of them: give each its own group")
}

// prompt are topics of a transport without delays: their ends are no Delayer.
type prompt struct{ pipelinetest.Topics }

func (p *prompt) Source(topic, group string) pipeline.Source {
	return struct{ pipeline.Source }{p.Topics.Source(topic, group)}
}

func (p *prompt) Sink(topic string) pipeline.Sink {
	return struct{ pipeline.Sink }{p.Topics.Sink(topic)}
}

// unable is an end of a topic that can't delay, for a reason of its own.
type unable struct{ pipeline.Sink }

func (unable) Delays() error { return errors.New("its name is odd") }

func TestARetryTopicThatDoesNotDelayIsRefused(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	var at prompt
	for name, tc := range map[string]struct {
		retry pipeline.Retry
		want  string
	}{
		"neither end":    {pipeline.RetryVia(&at, "r", "g", 2, pipeline.Backoff{}), "the transport delivers every message at once"},
		"the sink":       {pipeline.Retry{To: at.Sink("r"), From: topics.Source("r", "g")}, "the transport delivers every message at once"},
		"the source":     {pipeline.Retry{To: topics.Sink("r"), From: at.Source("r", "g")}, "the transport delivers every message at once"},
		"elsewhere":      {pipeline.Retry{To: at.Sink("r"), ReadElsewhere: true}, "the transport delivers every message at once"},
		"this topic":     {pipeline.Retry{To: unable{topics.Sink("r")}, From: topics.Source("r", "g")}, "its name is odd"},
		"both delay":     {pipeline.RetryVia(&topics, "r", "g", 2, pipeline.Backoff{}), ""},
		"no retries":     {pipeline.Retry{}, ""},
		"read elsewhere": {pipeline.Retry{To: topics.Sink("r"), ReadElsewhere: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"orders", func(r *pipeline.Registry) {
				r.Route(pipeline.Route{Name: "orders", From: topics.Source("orders", "g"), Handle: ack, Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: tc.retry}})
			}})
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "route orders: its retry topic feed r keeps no delay: "+tc.want+": use a topic of a transport that delays, such as kafka or redis")
		})
	}
}

type mail struct {
	To   string  `json:"to"`
	Cost float64 `json:"cost,omitempty"`
}

func (m mail) Key() string { return m.To }

func ExampleJSONTo() {
	// One mail per order, except for the order that needs none.
	handle := pipeline.JSONTo(func(_ context.Context, o order) ([]mail, error) {
		if o.ID == 1 {
			return nil, nil
		}
		return []mail{{To: fmt.Sprintf("buyer-%d@shop.example", o.ID)}}, nil
	})
	for _, payload := range []string{`{"id":1}`, `{"id":7}`, `{"id":-7}`} {
		out, err := handle(message.NewMessage("1", []byte(payload)))
		fmt.Println(len(out), "mails, error", err)
		for _, m := range out {
			fmt.Println(m.Metadata.Get(pipeline.MetaKey), string(m.Payload))
		}
	}
	// Output:
	// 0 mails, error <nil>
	// 1 mails, error <nil>
	// buyer-7@shop.example {"to":"buyer-7@shop.example"}
	// 0 mails, error id: must be > 0, got -7
}

func TestATypedOutput(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	handle := pipeline.JSONTo(func(_ context.Context, o order) ([]order, error) {
		if o.ID == 9 {
			return []order{{ID: 1}}, boom
		}
		return []order{{ID: o.ID + 1}, {ID: o.ID + 2}}, nil
	})
	in := func(payload string) *message.Message {
		m := message.NewMessage("1", []byte(payload))
		m.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: pipeline.Origin{Key: "k"}}))
		return m
	}
	out, err := handle(in(`{"id":7,"unknown":true}`))
	require.NoError(t, err)
	require.Len(t, out, 2)
	require.Equal(t, `{"id":9}`, string(out[1].Payload))
	require.Equal(t, "k", out[1].Metadata.Get(pipeline.MetaKey), "without a method Key it is the key of the message")
	require.NotEqual(t, out[0].UUID, out[1].UUID)

	out, err = handle(in(`{"id":9}`))
	require.ErrorIs(t, err, boom)
	require.Empty(t, out, "a failed message has no output")
	for payload, class := range map[string]string{`no JSON`: pipeline.ClassUndecodable, `{"id":"7"}`: pipeline.ClassUndecodable, `{"id":0}`: pipeline.ClassInvalid} {
		_, err = handle(in(payload))
		require.True(t, pipeline.IsPermanent(err), payload)
		require.Equal(t, class, pipeline.Class(err), payload)
	}
	_, err = pipeline.JSONTo(func(context.Context, order) ([]mail, error) { return []mail{{Cost: math.NaN()}}, nil })(in(`{"id":7}`))
	require.True(t, pipeline.IsPermanent(err))
	require.ErrorContains(t, err, "encode pipeline_test.mail: json: unsupported value: NaN")
}

// FuzzDueTime: a due time is as it was written, also that of the longest delay. One that can't be read
// or that no delay gives is none.
func FuzzDueTime(f *testing.F) {
	now := time.Date(2026, time.January, 2, 3, 4, 5, 6, time.UTC)
	longest := now.Add(math.MaxInt64)
	for _, s := range []string{
		"", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789+01:00", "0000-01-01T00:00:00Z", "2026-01-02 03:04:05", "soon",
		"9999-12-31T23:59:59Z", longest.Format(time.RFC3339Nano), longest.AddDate(3, 0, 0).Format(time.RFC3339Nano),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		due := pipeline.DueTime(message.Metadata{pipeline.MetaDue: text}, now)
		written, err := time.Parse(time.RFC3339Nano, text)
		switch {
		case err != nil, written.After(longest.AddDate(3, 0, 0)):
			require.True(t, due.IsZero())
		case !written.After(longest):
			require.True(t, due.Equal(written))
		default: // the clocks of writers differ
			require.True(t, due.IsZero() || due.Equal(written))
		}
	})
}
