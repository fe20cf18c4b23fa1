package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// at returns a middleware at a place.
func at(p pipeline.Place, f func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error)) []pipeline.Middleware {
	return []pipeline.Middleware{{Name: "own", Place: p, Wrap: func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) { return f(m, next) }
	}}}
}

// TestAMiddlewareAtTheHandlerIsPartOfIt: its panic is recovered, and its outputs are published.
func TestAMiddlewareAtTheHandlerIsPartOfIt(t *testing.T) {
	t.Parallel()
	out, dead := pipelinetest.NewRecorder("out"), pipelinetest.NewRecorder("dead")
	feed := pipelinetest.NewFeed("in")
	stop := pipelinetest.StartUntil(t, middleware.Options{}, onRoute{pipeline.Route{
		From: feed, To: out, Policy: pipeline.Policy{DeadLetter: dead},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			return message.Messages{message.NewMessage("1", m.Payload)}, nil
		},
		Middlewares: at(pipeline.PlaceHandler, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			if string(m.Payload) == "panic" {
				panic("ouch")
			}
			msgs, err := next(m)
			return append(msgs, message.NewMessage("2", []byte("around toy.route"))), err
		}),
	}})
	feed.Send(message.NewMessage("1", []byte("in")))
	require.True(t, (<-feed.Settled()).Acked)
	feed.Send(message.NewMessage("2", []byte("panic")))
	require.True(t, (<-feed.Settled()).Acked)
	require.NoError(t, stop())
	require.Len(t, out.Messages(), 2)
	require.Equal(t, "in", string(out.Messages()[0].Payload))
	require.Equal(t, "around toy.route", string(out.Messages()[1].Payload))
	require.Len(t, dead.Messages(), 1)
	require.Equal(t, "panic", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
}

// TestAMiddlewareCanLeaveARouteAlone: without a handler of its own, each message would panic and
// become a dead letter.
func TestAMiddlewareCanLeaveARouteAlone(t *testing.T) {
	t.Parallel()
	out := pipelinetest.NewRecorder("out")
	for _, p := range []pipeline.Place{pipeline.PlaceReceived, pipeline.PlaceAttempt, pipeline.PlaceHandler} {
		none := func(message.HandlerFunc) message.HandlerFunc { return nil }
		handle := wrap(t, pipeline.Route{To: out, Handle: copies, Middlewares: []pipeline.Middleware{{Name: "none", Place: p, Wrap: none}}})
		_, err := handle(message.NewMessage("1", nil))
		require.NoError(t, err)
	}
	require.Len(t, out.Messages(), 3)
}

// At each place outside of the publishing, a middleware sees its error, and what it fails or panics
// with is decided by the policy. The message that the policy decides about is as it came.
func TestAMiddlewareOutsideOfThePublishing(t *testing.T) {
	t.Parallel()
	for _, place := range []pipeline.Place{pipeline.PlaceReceived, pipeline.PlaceAttempt} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			for name, tt := range map[string]struct {
				do    func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error)
				class string // of the dead letter; empty: acked
				out   int
			}{
				"passes": {func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) { return next(m) }, "", 1},
				"ends":   {func(*message.Message, message.HandlerFunc) ([]*message.Message, error) { return nil, nil }, "", 0},
				"fails": {func(*message.Message, message.HandlerFunc) ([]*message.Message, error) {
					return nil, pipeline.WithClass(pipeline.Permanent(errBoom), "refused")
				}, "refused", 0},
				"panics": {func(*message.Message, message.HandlerFunc) ([]*message.Message, error) { panic("ouch") }, "panic", 0},
				"own output": {func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
					_, err := next(m)
					return message.Messages{message.NewMessage("", nil)}, err
				}, "permanent", 1},
				"scribbles": {func(m *message.Message, _ message.HandlerFunc) ([]*message.Message, error) {
					m.Payload = []byte("scribbled over")
					ctx, cancel := context.WithCancel(context.Background())
					cancel()
					m.SetContext(ctx)
					return nil, pipeline.Permanent(errBoom)
				}, "permanent", 0},
			} {
				out, dead := pipelinetest.NewRecorder("out"), pipelinetest.NewRecorder("dead")
				handle := wrap(t, pipeline.Route{To: out, Handle: copies, Policy: pipeline.Policy{DeadLetter: dead}, Middlewares: at(place, tt.do)})
				_, err := handle(from(pipeline.Delivery{Origin: pipeline.Origin{Source: "in", Position: "in/0@7"}}))
				require.NoError(t, err, name)
				require.Len(t, out.Messages(), tt.out, name)
				if tt.class == "" {
					require.Empty(t, dead.Messages(), name)
					continue
				}
				require.Len(t, dead.Messages(), 1, name)
				require.Equal(t, tt.class, dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass), name)
				require.Equal(t, "in/0@7", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadOrigin), name)
				require.Equal(t, "as it came", string(dead.Messages()[0].Payload), name)
			}

			out, seen := pipelinetest.NewRecorder("out"), error(nil)
			out.FailWith(errors.New("no broker"))
			handle := wrap(t, pipeline.Route{To: out, Handle: copies, Middlewares: at(place, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
				_, seen = next(m)
				return nil, seen
			})})
			_, err := handle(message.NewMessage("1", nil))
			require.ErrorContains(t, err, "no broker", "nacked")
			require.ErrorContains(t, seen, "no broker")
		})
	}
}

// On a route with HandleBatch the place before the handler runs once per message.
func TestAMiddlewareBeforeABatch(t *testing.T) {
	t.Parallel()
	var c calls
	out := pipelinetest.NewRecorder("out")
	b := batchOf{payloads: []string{"1", "bad", "2", "done", "panic", "lost", "3"}, route: pipeline.Route{
		To: out,
		HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			c.note(msgs)
			return echo(ctx, msgs)
		},
		Middlewares: at(pipeline.PlaceReceived, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			switch string(m.Payload) {
			case "bad":
				return nil, pipeline.Permanent(errBoom)
			case "done":
				return nil, nil
			case "panic":
				panic("ouch")
			case "lost":
				m.SetContext(context.Background())
			}
			return next(m)
		}),
	}}
	for payload, acked := range b.run(t) {
		require.True(t, acked, payload)
	}
	require.Len(t, c.all, 1, "one call for those that are left")
	require.Equal(t, []string{"bad", "lost", "panic"}, payloads(b.dead.Messages()))
	require.Len(t, out.Messages(), 6, "two for each of three messages")
}

// When the handler breaks on one message, the others are handled again as the middlewares before the
// batch have left them, and not as they were received.
func TestABatchThatBreaksKeepsWhatItsMiddlewaresDid(t *testing.T) {
	t.Parallel()
	out := pipelinetest.NewRecorder("out")
	b := batchOf{payloads: []string{"sealed 1", "sealed poison", "sealed 2"}, route: pipeline.Route{
		To: out,
		HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			results := make([]pipeline.BatchResult, len(msgs))
			for i, m := range msgs {
				switch text := string(m.Payload); {
				case strings.HasPrefix(text, "sealed"):
					results[i].Err = pipeline.Permanent(errBoom)
				case text == "poison":
					panic("poison")
				default:
					results[i].Out = message.Messages{message.NewMessage("", []byte(text))}
					m.Payload = []byte("changed by the handler")
				}
			}
			return results
		},
		Middlewares: at(pipeline.PlaceReceived, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			m.Payload = []byte(strings.TrimPrefix(string(m.Payload), "sealed "))
			return next(m)
		}),
	}}
	b.run(t)
	require.Equal(t, []string{"1", "2"}, payloads(out.Messages()))
	require.Equal(t, []string{"sealed poison"}, payloads(b.dead.Messages()), "a dead letter is what was received")
}

// adds is a plugin with middlewares for routes of others.
type adds []pipeline.Middleware

func (adds) Name() string { return "adds" }

func (a adds) Register(r *pipeline.Registry) error {
	r.Middleware(a...)
	return nil
}

func named(name string, p pipeline.Place, routes ...string) pipeline.Middleware {
	return pipeline.Middleware{Name: name, Place: p, Routes: routes, Wrap: func(next message.HandlerFunc) message.HandlerFunc {
		return func(m *message.Message) ([]*message.Message, error) {
			m.Metadata.Set("passed", m.Metadata.Get("passed")+name+" ")
			return next(m)
		}
	}}
}

// Middlewares stand in the order of the places, and at one place those of plugins are outside of the
// route's own. The route of the retry topic has the same.
func TestTheOrderOfMiddlewares(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	var passed string
	reg, err := pipeline.NewRegistry(pipeline.Env{}, adds{
		named("innermost", pipeline.PlaceHandler), named("plugins", pipeline.PlaceReceived, "toy.route"), named("other", pipeline.PlaceReceived, "elsewhere"),
	}, onRoute{pipeline.Route{
		From: topics.Source("in", "g"), Policy: pipeline.Policy{Retry: pipeline.RetryVia(&topics, "again", "g", 1, pipeline.Backoff{})},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			passed = m.Metadata.Get("passed")
			return nil, nil
		},
		Middlewares: []pipeline.Middleware{named("attempt", pipeline.PlaceAttempt), named("own", pipeline.PlaceReceived)},
	}})
	require.NoError(t, err)
	require.ErrorContains(t, reg.CheckMiddlewares(), `plugin adds: middleware other: there is no route "elsewhere"`)
	require.Len(t, reg.Routes(), 2)
	chain := middleware.New(reg, middleware.Options{})
	for _, route := range reg.Routes() {
		handle, _ := chain.Wrap(route)
		_, err = handle(message.NewMessage("1", nil))
		require.NoError(t, err)
		require.Equal(t, "plugins own attempt innermost ", passed, route.Name)
		require.Equal(t, "[metrics trace owner failure refuse hold plugins@received own@received attempt@attempt publish correlation recover timeout innermost@handler]",
			fmt.Sprint(middleware.Steps(route)), route.Name)
	}
}

// What can't do its work is refused when the route is registered.
func TestMiddlewaresAreRefused(t *testing.T) {
	t.Parallel()
	alone := pipeline.Route{Handle: handler(func(context.Context, string) error { return nil })}
	batched := pipeline.Route{HandleBatch: echo}
	for problem, tt := range map[string]struct {
		route  pipeline.Route
		plugin adds
		own    []pipeline.Middleware
	}{
		"": {alone, adds{named("a", pipeline.PlaceHandler)}, []pipeline.Middleware{named("b", pipeline.PlaceHandler)}},
		"plugin adds: route toy.route: middleware a needs a call of the handler per message, and the route has HandleBatch: use the place received": {batched, adds{named("a", pipeline.PlaceHandler)}, nil},
		"plugin toy: route toy.route: middleware b needs a call of the handler per message":                                                         {batched, nil, []pipeline.Middleware{named("b", pipeline.PlaceAttempt)}},
		"route toy.route has two middlewares \"a\"":                                                                                                 {alone, adds{named("a", pipeline.PlaceHandler)}, []pipeline.Middleware{named("a", pipeline.PlaceReceived)}},
		"middleware a: Place must be one of received, attempt, handler, got \"outside\"":                                                            {alone, adds{named("a", "outside")}, nil},
		"plugin toy: route toy.route: middleware name must be lower-case letters":                                                                   {alone, nil, []pipeline.Middleware{named("A b", pipeline.PlaceHandler)}},
		"plugin adds: middleware a: Wrap is nil":                                                                                                    {alone, adds{{Name: "a", Place: pipeline.PlaceHandler}}, nil},
		"route toy.route: middleware a has Routes":                                                                                                  {alone, nil, []pipeline.Middleware{named("a", pipeline.PlaceHandler, "toy.route")}},
	} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			tt.route.From, tt.route.Middlewares = pipelinetest.NewFeed("in"), tt.own
			_, err := pipeline.NewRegistry(pipeline.Env{}, tt.plugin, onRoute{tt.route})
			if problem == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, problem)
		})
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, adds{named("a", pipeline.PlaceReceived)}, onRoute{pipeline.Route{From: pipelinetest.NewFeed("in"), HandleBatch: echo}})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(middleware.Steps(reg.Routes()[0]), func(s middleware.Step) bool { return s.String() == "a@received" }))
}
