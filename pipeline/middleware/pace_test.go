package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// The chain tells how fast a route works and fails, from the second count on. A message that ended with its process has
// not failed.
func TestTheChainTellsHowFastARouteWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{pipeline.Route{
			From: pipelinetest.NewFeed("in"), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
			Handle: handler(func(ctx context.Context, payload string) error {
				switch payload {
				case "hopeless":
					return pipeline.Permanent(errors.New("no"))
				case "again":
					return errors.New("not now")
				}
				return ctx.Err()
			}),
		}})
		require.NoError(t, err)
		run, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
		handle := func(ctx context.Context, n int, payload string) {
			for range n {
				_, _ = run(message.NewMessageWithContext(ctx, payload, []byte(payload)))
			}
		}
		tell := func() (done, failed any) {
			w := operate.WorkHere(reg)["toy.route"]
			if w.DonePerSecond == nil && w.FailedPerSecond == nil {
				return nil, nil
			}
			return *w.DonePerSecond, *w.FailedPerSecond
		}
		after := func(d time.Duration, good, bad int) []any {
			time.Sleep(d)
			handle(t.Context(), good, "good")
			handle(t.Context(), bad, "again")
			handle(t.Context(), bad, "hopeless")
			ended, end := context.WithCancel(t.Context())
			end()
			handle(ended, bad, "ended")
			done, failed := tell()
			return []any{done, failed}
		}
		require.Equal(t, []any{nil, nil}, after(0, 500, 50), "nobody has counted before")
		require.Equal(t, []any{nil, nil}, after(100*time.Millisecond, 5, 1), "too short a time for a rate")
		require.Equal(t, []any{20.0, 4.0}, after(900*time.Millisecond, 15, 1))
		require.Equal(t, []any{10.0, 2.0}, after(time.Second, 0, 0), "over all of the time")
		require.Equal(t, []any{0.4, 0.8}, after(14*time.Second, 6, 6), "what is older than the window does not count")
		require.Equal(t, []any{nil, nil}, after(time.Hour, 1, 0), "nobody has counted for an hour")
		require.Equal(t, []any{0.0, 0.0}, after(10*time.Second, 0, 0), "nothing is done")

		tellers := pipeline.Offers[operate.WorkTeller](reg)
		require.Len(t, tellers, 1)
		require.Zero(t, tellers[0].Work("another"))
	})
}

// The chain tells what its metrics have of a route: how its messages ended, and how long they took.
func TestTheChainTellsWhatItMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{pipeline.Route{
			From: pipelinetest.NewFeed("in"), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
			Handle: handler(func(_ context.Context, payload string) error {
				time.Sleep(200 * time.Millisecond)
				if payload == "hopeless" {
					return pipeline.WithClass(pipeline.Permanent(errors.New("no")), "far")
				}
				return nil
			}),
		}})
		require.NoError(t, err)
		_, known := operate.MeasuresHere(reg, "toy.route")
		require.False(t, known, "a command has no chain")
		run, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
		for _, payload := range []string{"good", "hopeless", "good"} {
			_, _ = run(message.NewMessage(payload, []byte(payload)))
		}
		m, known := operate.MeasuresHere(reg, "toy.route")
		require.True(t, known)
		require.Equal(t, []pipeline.Outcome{{Outcome: "acked", Messages: 2}, {Outcome: "dead", Class: "far", Messages: 1}}, m.Outcomes)
		require.EqualValues(t, 3, m.Durations.Count)
		require.InDelta(t, 0.2, m.Durations.Mean(), 1e-9)
		median, beyond := m.Durations.Quantile(0.5)
		require.False(t, beyond)
		require.InDelta(t, 0.175, median, 1e-9, "the middle between two bounds")
		require.Zero(t, m.Batches.Count)
		other, _ := operate.MeasuresHere(reg, "another")
		require.Zero(t, other)
	})
}
