package middleware_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// outputs are two sinks of a route which note the order of their publishes.
type outputs struct {
	mu   sync.Mutex
	all  []string // "name: payload payload", per publish
	fail func(name string, msgs []*message.Message) error
}

func (o *outputs) sink(name string) pipeline.Sink { return outputSink{o, name} }

// on returns a route with a To, the output audit and, if others are given, these.
func (o *outputs) on(r pipeline.Route, others ...string) pipeline.Route {
	r.To, r.Outputs = o.sink("to"), map[string]pipeline.Sink{"audit": o.sink("audit")}
	for _, name := range others {
		r.Outputs[name] = o.sink(name)
	}
	return r
}

// published returns the publishes so far.
func (o *outputs) published() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

type outputSink struct {
	*outputs
	name string
}

func (s outputSink) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "sink", Name: s.name}
}

func (s outputSink) Publish(_ context.Context, msgs ...*message.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.name + ":"
	for _, m := range msgs {
		line += " " + string(m.Payload)
	}
	s.all = append(s.all, line)
	if s.fail != nil {
		return s.fail(s.name, msgs)
	}
	return nil
}

// returning is a handler that returns messages with these outputs and payloads.
func returning(pairs ...[2]string) message.HandlerFunc {
	return func(*message.Message) (out []*message.Message, err error) {
		for _, p := range pairs {
			out = append(out, pipeline.SendTo(message.NewMessage("", []byte(p[1])), p[0]))
		}
		return out, nil
	}
}

func TestEachMessageGoesToItsOutput(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		returned  [][2]string
		published []string
	}{
		"in the order of the first message": {
			[][2]string{{"audit", "1"}, {"", "2"}, {"audit", "3"}, {"mail", "4"}, {"", "5"}},
			[]string{"audit: 1 3", "to: 2 5", "mail: 4"},
		},
		"none for To":   {[][2]string{{"mail", "1"}}, []string{"mail: 1"}},
		"To alone":      {[][2]string{{"", "1"}, {"", "2"}}, []string{"to: 1 2"}},
		"no message":    {nil, nil},
		"the same copy": {[][2]string{{"", "1"}, {"audit", "1"}}, []string{"to: 1", "audit: 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o outputs
			_, err := wrap(t, o.on(pipeline.Route{Handle: returning(tt.returned...)}, "mail"))(from(pipeline.Delivery{}))
			require.NoError(t, err)
			require.Equal(t, tt.published, o.published())
		})
	}
}

// The message that is handled may itself go to several outputs, while its own headers stay with it.
func TestTheHandledMessageMayGoToSeveralOutputs(t *testing.T) {
	t.Parallel()
	to, audit := pipelinetest.NewRecorder("to"), pipelinetest.NewRecorder("audit")
	msg := from(pipeline.Delivery{})
	msg.Metadata = message.Metadata{pipeline.MetaReplay: "7/1", "tenant": "a"}
	_, err := wrap(t, pipeline.Route{To: to, Outputs: map[string]pipeline.Sink{"audit": audit}, Handle: func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{m, pipeline.SendTo(m, "audit")}, nil
	}})(msg)
	require.NoError(t, err)
	for _, sink := range []*pipelinetest.Recorder{to, audit} {
		require.Len(t, sink.Messages(), 1)
		published := sink.Messages()[0].Metadata
		require.Equal(t, "a", published.Get("tenant"))
		require.NotEmpty(t, published.Get("correlation_id"))
		require.NotContains(t, published, pipeline.MetaReplay)
		delete(published, "correlation_id")
		require.Len(t, published, 1, "and no header with the name of the output")
	}
	require.Equal(t, "7/1", msg.Metadata.Get(pipeline.MetaReplay))
}

// A message for an output that the route does not have is a mistake in the program: a retry can't
// help, and nothing of the handled message is published.
func TestAnOutputThatTheRouteDoesNotHave(t *testing.T) {
	t.Parallel()
	var o outputs
	for name, tt := range map[string]struct {
		route  pipeline.Route
		output string
		reason string
	}{
		"a mistyped name": {o.on(pipeline.Route{}, "mail"), "audti", `the handler returned a message for the output "audti", but the Outputs of its route are audit, mail`},
		"no Outputs":      {pipeline.Route{To: o.sink("to")}, "audit", `the handler returned a message for the output "audit", but its route has no Outputs`},
		"no To":           {pipeline.Route{Outputs: map[string]pipeline.Sink{"a": o.sink("a")}}, "", `the handler returned messages, but its route has no To: name one of its Outputs with SendTo: a`},
		"neither":         {pipeline.Route{}, "", `the handler returned messages, but its route has no To`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dead, retry := pipelinetest.NewRecorder("dead"), pipelinetest.NewRecorder("retry")
			tt.route.Policy = pipeline.Policy{DeadLetter: dead, Retry: pipeline.Retry{To: retry}}
			tt.route.Handle = returning([2]string{tt.output, "1"})
			if len(tt.route.Outputs) > 0 && tt.route.To != nil {
				tt.route.Handle = returning([2]string{"audit", "0"}, [2]string{tt.output, "1"})
			}
			require.True(t, settle(t, tt.route, message.NewMessage("1", []byte("x"))).Acked)
			require.Empty(t, retry.Messages())
			require.Len(t, dead.Messages(), 1)
			require.Equal(t, tt.reason, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError))
			require.Equal(t, "permanent", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
		})
	}
	t.Cleanup(func() { require.Empty(t, o.published()) })
}

// At least once: what was published before the output that failed is published again.
func TestOutputsAfterOneThatFailed(t *testing.T) {
	t.Parallel()
	o := outputs{}
	failing := true
	o.fail = func(name string, _ []*message.Message) error {
		if name == "audit" && failing {
			return errBoom
		}
		return nil
	}
	handle := wrap(t, o.on(pipeline.Route{Handle: returning([2]string{"", "1"}, [2]string{"audit", "2"}, [2]string{"mail", "3"})}, "mail"))
	_, err := handle(from(pipeline.Delivery{}))
	require.ErrorIs(t, err, errBoom)
	require.EqualError(t, err, "publish to sink audit: "+errBoom.Error())
	require.Equal(t, []string{"to: 1", "audit: 2"}, o.published(), "the outputs after it are not published")
	failing = false
	_, err = handle(from(pipeline.Delivery{}))
	require.NoError(t, err)
	require.Equal(t, []string{"to: 1", "audit: 2", "mail: 3"}, o.published()[2:])
}

// A middleware at the handler sees the outputs, and one that copies them with their contexts keeps
// their names.
func TestMiddlewaresSeeTheOutputs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		copy func(*message.Message) *message.Message
		want []string
	}{
		"with the context":    {(*message.Message).CopyWithContext, []string{"to: 1", "audit: 2"}},
		"without the context": {(*message.Message).Copy, []string{"to: 1 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o outputs
			_, err := wrap(t, o.on(pipeline.Route{
				Handle: returning([2]string{"", "1"}, [2]string{"audit", "2"}),
				Middlewares: at(pipeline.PlaceHandler, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
					out, err := next(m)
					for i := range out {
						out[i] = tt.copy(out[i])
					}
					return out, err
				}),
			}))(from(pipeline.Delivery{}))
			require.NoError(t, err)
			require.Equal(t, tt.want, o.published())
		})
	}
}

// Each message of a batch keeps its own outcome, whichever of its outputs fails.
func TestOutputsOfABatch(t *testing.T) {
	t.Parallel()
	type fails map[string]func([]*message.Message) error // by output
	for name, tt := range map[string]struct {
		fails        fails
		published    []string
		nacked, dead []string
	}{
		"none": {nil, []string{"to: a b c", "audit: b c d", "mail: c"}, nil, nil},
		"some of To": {fails{"to": func([]*message.Message) error {
			return &pipeline.PartialError{Failed: map[int]error{1: errBoom, 2: pipeline.Permanent(errBoom)}, Size: 3}
		}}, []string{"to: a b c", "audit: d"}, []string{"b"}, []string{"c"}},
		"some of audit": {fails{"audit": func([]*message.Message) error {
			return &pipeline.PartialError{Failed: map[int]error{0: errBoom, 2: pipeline.Permanent(errBoom)}, Size: 3}
		}}, []string{"to: a b c", "audit: b c d", "mail: c"}, []string{"b"}, []string{"d"}},
		"all of audit": {fails{"audit": func([]*message.Message) error { return errBoom }},
			[]string{"to: a b c", "audit: b c d"}, []string{"b", "c", "d"}, nil},
		"one of audit can never be published": {fails{"audit": func(msgs []*message.Message) error {
			if slices.ContainsFunc(msgs, func(m *message.Message) bool { return string(m.Payload) == "c" }) {
				return pipeline.Permanent(errBoom)
			}
			return nil
			// The others are published by themselves, without what was published to To already.
		}}, []string{"to: a b c", "audit: b c d", "audit: b", "audit: c", "audit: d"}, nil, []string{"c"}},
		"a panic": {fails{"mail": func([]*message.Message) error { panic("ouch") }},
			[]string{"to: a b c", "audit: b c d", "mail: c"}, nil, []string{"c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := outputs{fail: func(name string, msgs []*message.Message) error {
				if f := tt.fails[name]; f != nil {
					return f(msgs)
				}
				return nil
			}}
			// A feed delivers in any order: the place of a message in the batch says what it returns.
			returned := [][]string{{""}, {"", "audit"}, {"", "audit", "mail"}, {"audit"}, {"audti", ""}}
			places := map[string]string{} // by payload
			b := batchOf{payloads: []string{"1", "2", "3", "4", "5"}, route: o.on(pipeline.Route{}, "mail")}
			b.route.HandleBatch = func(_ context.Context, msgs []*message.Message) []pipeline.BatchResult {
				results := make([]pipeline.BatchResult, len(msgs))
				for i, m := range msgs {
					place := string(rune('a' + i))
					places[string(m.Payload)] = place
					for _, name := range returned[i] {
						results[i].Out = append(results[i].Out, pipeline.SendTo(message.NewMessage("", []byte(place)), name))
					}
				}
				return results
			}
			var nacked, dead []string
			for payload, acked := range b.run(t) {
				if !acked {
					nacked = append(nacked, places[payload])
				}
			}
			for _, payload := range payloads(b.dead.Messages()) {
				dead = append(dead, places[payload])
			}
			slices.Sort(nacked)
			slices.Sort(dead)
			require.Equal(t, tt.nacked, nacked)
			require.Equal(t, append(slices.Clone(tt.dead), "e"), dead, "e has an output that the route does not have")
			published := o.published()
			require.Equal(t, tt.published[:min(2, len(published))], published[:min(2, len(published))])
			require.ElementsMatch(t, tt.published, published, "those of single messages come in any order")
		})
	}
}

// The rest of a message that goes on alone (BatchResult.Then) has the outputs, too.
func TestThenHasTheOutputs(t *testing.T) {
	t.Parallel()
	var o outputs
	b := batchOf{payloads: []string{"a"}, route: o.on(pipeline.Route{})}
	b.route.HandleBatch = perMessage(func(*message.Message) pipeline.BatchResult {
		return pipeline.BatchResult{Then: returning([2]string{"audit", "1"}, [2]string{"", "2"})}
	})
	require.Equal(t, map[string]bool{"a": true}, b.run(t))
	require.Equal(t, []string{"audit: 1", "to: 2"}, o.published())
}

// A retry record and a dead letter are of the message that was handled, and have no output.
func TestARetryOfAMessageWithOutputs(t *testing.T) {
	t.Parallel()
	o := outputs{fail: func(name string, _ []*message.Message) error {
		if name == "audit" {
			return errors.New("the audit topic is missing")
		}
		return nil
	}}
	retry := pipelinetest.NewRecorder("retry")
	route := o.on(pipeline.Route{Handle: returning([2]string{"", "1"}, [2]string{"audit", "2"})})
	route.Policy.Retry = pipeline.Retry{To: retry, Max: 3}
	require.True(t, settle(t, route, message.NewMessage("1", []byte("x"))).Acked)
	require.Equal(t, []string{"x"}, payloads(retry.Messages()))
	require.Equal(t, "publish to sink audit: the audit topic is missing", retry.Messages()[0].Metadata.Get(pipeline.MetaLastError))
}
