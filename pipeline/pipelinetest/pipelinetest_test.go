package pipelinetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// shout is a plugin of one route.
type shout struct {
	in  *pipelinetest.Feed
	out *pipelinetest.Recorder
}

func (shout) Name() string { return "shout" }

func (p shout) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{Name: "shout", From: p.in, To: p.out, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, Handle: func(m *message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage(m.UUID, append(m.Payload, '!'))}, nil
	}})
	return nil
}

func Example() {
	t := &testing.T{} // your test's own t
	p := shout{pipelinetest.NewFeed("words"), pipelinetest.NewRecorder("shouts")}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
	if err != nil {
		t.Fatal(err)
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	ctx := context.Background()
	if err := rt.Start(ctx); err != nil {
		t.Fatal(err)
	}
	p.in.SendPayloads("hey")
	msgs, err := p.out.Wait(ctx, 1)
	fmt.Println(string(msgs[0].Payload), err, rt.Stop(ctx))
	// Output: hey! <nil> <nil>
}

func TestStart(t *testing.T) {
	t.Parallel()
	p := shout{pipelinetest.NewFeed("words"), pipelinetest.NewRecorder("shouts")}
	pipelinetest.Start(t, p)
	p.in.SendPayloads("a", "b", "c")
	msgs, err := p.out.Wait(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, "a!", string(msgs[0].Payload))
	require.Equal(t, "c!", string(msgs[2].Payload))
}

func TestEachStartIsAnotherInstance(t *testing.T) {
	t.Parallel()
	start := func() string {
		return pipelinetest.Start(t, shout{pipelinetest.NewFeed("words"), pipelinetest.NewRecorder("shouts")}).Env().Instance
	}
	require.NotEqual(t, start(), start())
}

func TestConformanceOfAGoodPlugin(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		return []pipeline.Plugin{shout{pipelinetest.NewFeed("words"), pipelinetest.NewRecorder("shouts")}}
	})
}

func TestRecorderFailsOnDemand(t *testing.T) {
	t.Parallel()
	r := pipelinetest.NewRecorder("r")
	r.FailWith(errors.New("no broker"))
	require.Error(t, r.Publish(t.Context(), message.NewMessage("1", nil)))
	r.FailWith(nil)
	require.NoError(t, r.Publish(t.Context(), message.NewMessage("1", nil)))
	require.Len(t, r.Messages(), 1)
}
