package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// The chain tells other plugins what a route has acknowledged, and does not count what has failed.
func TestTheChainOffersWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{pipeline.Route{
		From: pipelinetest.NewFeed("in"), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
		Handle: handler(func(_ context.Context, payload string) error {
			if payload == "bad" {
				return pipeline.Permanent(errors.New("no"))
			}
			return nil
		}),
	}})
	require.NoError(t, err)
	route := reg.Routes()[0]
	run, _ := middleware.New(reg, middleware.Options{}).Wrap(route)
	for _, payload := range []string{"good", "bad", "good"} {
		_, err := run(message.NewMessageWithContext(t.Context(), payload, []byte(payload)))
		require.NoError(t, err)
	}
	tellers := pipeline.Offers[operate.WorkTeller](reg)
	require.Len(t, tellers, 1)
	require.EqualValues(t, 2, tellers[0].Work(route.Name).Acked)
	require.Zero(t, tellers[0].Work("another"))
}
