package middleware_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A message that the transport gives to another instance is nacked. No handler receives it, and it
// becomes neither a retry record nor a dead letter.
func TestAMessageThatIsNotHeld(t *testing.T) {
	t.Parallel()
	retry, dead := pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
	policy := pipeline.Policy{DeadLetter: dead, MaxDeliveries: 1, Retry: pipeline.Retry{Max: 3, To: retry}}
	handled := func(m *message.Message) { require.Equal(t, "held", string(m.Payload)) }
	for name, route := range map[string]pipeline.Route{
		"alone": {Handle: func(m *message.Message) ([]*message.Message, error) {
			handled(m)
			return nil, nil
		}},
		"in a batch": {HandleBatch: perMessage(func(m *message.Message) pipeline.BatchResult {
			handled(m)
			return pipeline.BatchResult{}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			feed := pipelinetest.NewFeed("in")
			route.From, route.Policy, route.Flow = feed, policy, pipeline.Flow{Window: 2}
			reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, onRoute{route})
			require.NoError(t, err)
			rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
			require.NoError(t, rt.Start(t.Context()))
			for _, held := range []bool{true, false} {
				m := message.NewMessage("", []byte(map[bool]string{true: "held", false: "lost"}[held]))
				m.SetContext(pipeline.WithDelivery(context.Background(), pipeline.Delivery{Held: func() bool { return held }}))
				feed.Send(m)
				require.Equal(t, held, (<-feed.Settled()).Acked)
			}
			require.NoError(t, rt.Stop(t.Context()))
			require.Empty(t, retry.Messages())
			require.Empty(t, dead.Messages())
		})
	}
}
