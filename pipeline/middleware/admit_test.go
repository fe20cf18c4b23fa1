package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// handlers returns routes that call handle for each message: with Handle, with HandleBatch, and with
// BatchResult.Then.
func handlers(handle message.HandlerFunc) map[string]pipeline.Route {
	return map[string]pipeline.Route{
		"alone": {Handle: handle},
		"in a batch": {HandleBatch: perMessage(func(m *message.Message) pipeline.BatchResult {
			out, err := handle(m)
			return pipeline.BatchResult{Out: out, Err: err}
		})},
		"then": {HandleBatch: perMessage(func(*message.Message) pipeline.BatchResult { return pipeline.BatchResult{Then: handle} })},
	}
}

// hangingSink is a sink whose publishes ignore their context.
type hangingSink struct {
	pipeline.Sink
	release chan struct{}
}

func (s hangingSink) Publish(context.Context, ...*message.Message) error {
	<-s.release
	return nil
}

// What hangs is reported with its message wherever it hangs, and a batch then gives its place to the
// next one.
func TestWhatHangsIsReported(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"received", "handler", "publish"} {
		for _, how := range []string{"alone", "in a batch", "then"} {
			t.Run(where+", "+how, func(t *testing.T) {
				t.Parallel()
				for _, tt := range []struct {
					payloads []string
					batch    int    // the size of a batch
					stuck    string // the last one that is reported
				}{
					{[]string{"bad", "bad", "bad", "bad", "bad"}, 1, `in@\d`},
					{[]string{"good", "bad", "good"}, 3, "in@2"}, // the order of a batch is not that of the feed
				} {
					if tt.batch > 1 && where == "handler" && how == "in a batch" {
						continue // one call for all
					}
					synctest.Test(t, func(t *testing.T) {
						release := make(chan struct{})
						hang := func(at string, m *message.Message) {
							if at == where && string(m.Payload) == "bad" {
								<-release
							}
						}
						route := handlers(func(m *message.Message) ([]*message.Message, error) {
							hang("handler", m)
							if where != "publish" || string(m.Payload) != "bad" {
								return nil, nil
							}
							return []*message.Message{message.NewMessage("", nil)}, nil
						})[how]
						feed := pipelinetest.NewFeed("in")
						route.From, route.To, route.Flow.Window = feed, hangingSink{pipelinetest.NewRecorder("out"), release}, len(tt.payloads)
						route.Policy = pipeline.Policy{LongestHold: time.Minute, DeadLetter: pipelinetest.NewRecorder("dead")}
						route.Batch = pipeline.Batch{MaxRecords: tt.batch, Linger: time.Second}
						route.Middlewares = at(pipeline.PlaceReceived, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
							hang("received", m)
							return next(m)
						})
						hung := 0
						for _, payload := range tt.payloads {
							if payload == "bad" {
								hung++
							}
						}
						reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{route})
						require.NoError(t, err)
						chain := middleware.New(reg, middleware.Options{MaxStuck: hung})
						rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
						require.NoError(t, rt.Start(t.Context()))
						defer func() {
							close(release)
							require.NoError(t, rt.Stop(context.Background()))
							require.Zero(t, stuck(t, reg))
						}()
						feed.SendPayloads(tt.payloads...)
						var reason error
						select {
						case reason = <-rt.Failed():
						case <-time.After(time.Hour): // of the bubble
						}
						require.ErrorContains(t, reason, fmt.Sprintf("%d handlers have not returned within their longest hold", hung))
						require.Regexp(t, tt.stuck+"$", reason.Error())
						require.Equal(t, float64(hung), stuck(t, reg))
					})
				}
			})
		}
	}
}

type tenantKey struct{}

// The handler sees the message that a middleware passed on, as it was then: with Handle, with
// HandleBatch and with Then. What is acked or becomes a dead letter is the message that was received.
func TestTheHandlerSeesWhatWasPassedOn(t *testing.T) {
	t.Parallel()
	change := func(m *message.Message) context.CancelFunc {
		ctx, cancel := context.WithCancel(context.WithValue(m.Context(), tenantKey{}, "acme"))
		m.SetContext(ctx)
		m.Payload = append([]byte("opened "), m.Payload...)
		m.Metadata.Set("tenant", "acme")
		return cancel
	}
	for name, pass := range map[string]func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error){
		"a copy": func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			other := m.CopyWithContext()
			defer change(other)()
			return next(other)
		},
		"undone afterwards": func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			ctx, payload := m.Context(), m.Payload
			defer func() {
				m.SetContext(ctx)
				m.Payload = payload
				delete(m.Metadata, "tenant")
			}()
			defer change(m)()
			return next(m)
		},
	} {
		var mu sync.Mutex
		seen := map[string]bool{}
		for how, route := range handlers(func(m *message.Message) ([]*message.Message, error) {
			ctx := m.Context()
			mu.Lock()
			seen[fmt.Sprintf("%s %s: %s, tenant %s %s, correlation %s", name, pipeline.DeliveryFrom(ctx), m.Payload, ctx.Value(tenantKey{}), m.Metadata.Get("tenant"), m.Metadata.Get("correlation_id"))] = true
			mu.Unlock()
			text := string(m.Payload)
			m.Payload = []byte("scribbled over")
			m.SetContext(context.Background())
			switch {
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case strings.HasSuffix(text, "poison"):
				panic("poison")
			case strings.HasSuffix(text, "bad"):
				return nil, pipeline.Permanent(errBoom)
			}
			return []*message.Message{message.NewMessage("", []byte(text))}, nil
		}) {
			t.Run(name+", "+how, func(t *testing.T) {
				clear(seen)
				out := pipelinetest.NewRecorder("out")
				b := batchOf{payloads: []string{"good", "bad", "poison", "fine"}, route: route}
				b.route.To, b.route.Middlewares = out, at(pipeline.PlaceReceived, pass)
				require.Equal(t, map[string]bool{"good": true, "bad": true, "poison": true, "fine": true}, b.run(t))
				var want []string
				for i, payload := range b.payloads {
					want = append(want, fmt.Sprintf("%s in@%d: opened %s, tenant acme acme, correlation %d", name, i+1, payload, i+1))
				}
				require.Equal(t, want, slices.Sorted(maps.Keys(seen)))
				require.Equal(t, []string{"opened fine", "opened good"}, payloads(out.Messages()))
				require.Equal(t, []string{"bad", "poison"}, payloads(b.dead.Messages()))
				for _, m := range b.dead.Messages() {
					require.Equal(t, map[string]string{"bad": "in@2", "poison": "in@3"}[string(m.Payload)], m.Metadata.Get(pipeline.MetaDeadOrigin))
				}
			})
		}
	}
}

// A batch has one message for each that was received. A second one would be lost, so it is an error.
func TestAMiddlewareThatPassesOnTwoMessages(t *testing.T) {
	t.Parallel()
	b := batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{
		HandleBatch: perMessage(func(*message.Message) pipeline.BatchResult { return pipeline.BatchResult{} }),
		Middlewares: at(pipeline.PlaceReceived, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
			if string(m.Payload) == "2" {
				_, _ = next(m.CopyWithContext())
			}
			return next(m)
		}),
	}}
	require.Equal(t, map[string]bool{"1": true, "2": true}, b.run(t))
	require.Equal(t, []string{"2"}, payloads(b.dead.Messages()))
	require.Contains(t, b.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError), "passed on two messages")
}

// Whatever a middleware does to its goroutine or panics with, only its message is affected, in the
// same way with Handle and with HandleBatch.
func TestAMiddlewareAffectsOnlyItsMessage(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(){"goexit": runtime.Goexit, "panic": func() { panic("ouch") }} {
		for how, route := range handlers(nothing) {
			t.Run(what+", "+how, func(t *testing.T) {
				t.Parallel()
				var log pipelinetest.Buffer
				b := batchOf{payloads: []string{"1", "bad", "3", "4"}, route: route, log: slog.New(slog.NewTextHandler(&log, nil))}
				b.route.Middlewares = at(pipeline.PlaceReceived, func(m *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
					if string(m.Payload) == "bad" {
						m.SetContext(context.Background())
						end()
					}
					return next(m)
				})
				acked := b.run(t)
				require.Equal(t, map[string]bool{"1": true, "bad": what == "panic", "3": true, "4": true}, acked)
				require.Equal(t, what == "panic", len(b.dead.Messages()) == 1)
				require.Contains(t, log.String(), map[string]string{"goexit": "outcome=nacked", "panic": "outcome=dead"}[what])
				require.Contains(t, log.String(), "origin=in@2")
				counts, _ := measured(t, b.reg)
				require.Equal(t, 4.0, counts["messages_total"])
				require.Zero(t, counts["messages_in_flight"])
			})
		}
	}
}

// The dead letter of a message names its origin, whatever its handler did to its context.
func TestTheOriginOfADeadLetterSurvivesTheHandler(t *testing.T) {
	t.Parallel()
	for how, route := range handlers(func(m *message.Message) ([]*message.Message, error) {
		m.SetContext(context.Background())
		return nil, pipeline.Permanent(errors.New("never"))
	}) {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := batchOf{payloads: []string{"1"}, route: route}
			b.run(t)
			require.Len(t, b.dead.Messages(), 1)
			require.Equal(t, "in@1", b.dead.Messages()[0].Metadata.Get(pipeline.MetaDeadOrigin))
		})
	}
}

// What a handler of batches did to the context of a message does not reach the message's own handler.
func TestThenHasTheContextOfItsMessage(t *testing.T) {
	t.Parallel()
	b := batchOf{payloads: []string{"1", "2"}, route: pipeline.Route{HandleBatch: perMessage(func(m *message.Message) pipeline.BatchResult {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		m.SetContext(ctx)
		return pipeline.BatchResult{Then: func(m *message.Message) ([]*message.Message, error) {
			if o := pipeline.DeliveryFrom(m.Context()); o.Source != "in" {
				return nil, pipeline.Permanent(errBoom)
			}
			return nil, m.Context().Err()
		}}
	})}}
	require.Equal(t, map[string]bool{"1": true, "2": true}, b.run(t))
	require.Empty(t, b.dead.Messages())
}
