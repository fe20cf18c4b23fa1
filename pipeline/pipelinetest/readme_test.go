package pipelinetest_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// greeter is a plugin that reads the topic names and writes the topic greetings.
type greeter struct{ topics pipeline.Topics }

func (greeter) Name() string { return "greeter" }

func (g greeter) Register(r *pipeline.Registry) error {
	log := r.Env().Logger
	r.Route(pipeline.Route{
		Name: "greeter", From: g.topics.Source("names", "greeter"), To: g.topics.Sink("greetings"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if len(m.Payload) == 0 {
				return nil, pipeline.Permanent(errors.New("nobody is named"))
			}
			log.Info("greeted", "id", m.UUID)
			return []*message.Message{message.NewMessage(m.UUID, []byte("Hello "+string(m.Payload)))}, nil
		},
		Policy: pipeline.Policy{DeadLetter: g.topics.Sink("names-dead")},
	})
	return nil
}

func TestGreeter(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	pipelinetest.Start(t, greeter{&topics})

	names := topics.Feed("names")
	names.SendPayloads("Ann", "")
	for range 2 {
		require.True(t, (<-names.Settled()).Acked, "also the dead letter")
	}

	greetings := topics.Published("greetings").Messages()
	require.Len(t, greetings, 1)
	require.Equal(t, "Hello Ann", string(greetings[0].Payload))
	require.Len(t, topics.Published("names-dead").Messages(), 1)
}

func TestWhatAPluginLogs(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	var said pipelinetest.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: log}, greeter{&topics})
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	require.NoError(t, rt.Start(t.Context()))
	topics.Feed("names").SendPayloads("Ann")
	<-topics.Feed("names").Settled()
	require.Contains(t, said.String(), "msg=greeted id=1")
	require.NoError(t, rt.Stop(t.Context()))
}
