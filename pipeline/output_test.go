package pipeline_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// The message that SendTo was given is not changed, because it may be the one that is handled.
func TestSendToCopies(t *testing.T) {
	t.Parallel()
	type key struct{}
	m := message.NewMessageWithContext(context.WithValue(t.Context(), key{}, "v"), "1", []byte("x"))
	m.Metadata.Set("a", "b")
	out := pipeline.SendTo(m, "audit")
	require.Equal(t, "audit", pipeline.OutputOf(out))
	require.True(t, out.Equals(m), "the name is not in the metadata")
	require.Equal(t, "v", out.Context().Value(key{}))
	out.Metadata.Set("a", "c")
	require.Equal(t, "b", m.Metadata.Get("a"))
	require.Empty(t, pipeline.OutputOf(m))
	require.Empty(t, pipeline.OutputOf(pipeline.SendTo(out, "")), "To")
	require.Nil(t, pipeline.SendTo(nil, "audit"))
}

func TestAllOutputsAreInOrder(t *testing.T) {
	t.Parallel()
	a, b, c := pipelinetest.NewRecorder("a"), pipelinetest.NewRecorder("b"), pipelinetest.NewRecorder("c")
	require.Empty(t, pipeline.Route{}.AllOutputs())
	require.Equal(t, []pipeline.Output{{Name: "", Sink: c}, {Name: "x", Sink: b}, {Name: "y", Sink: a}},
		pipeline.Route{To: c, Outputs: map[string]pipeline.Sink{"y": a, "x": b}}.AllOutputs())
}

func TestMistakesOfOutputs(t *testing.T) {
	t.Parallel()
	_, err := pipeline.NewRegistry(pipeline.Env{}, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{
			Name: "orders", From: pipelinetest.NewFeed("in"), Handle: ack, Policy: lossy,
			Outputs: map[string]pipeline.Sink{"audit": nil, "": pipelinetest.NewRecorder("a"), "A b": pipelinetest.NewRecorder("b"), "ok-1": pipelinetest.NewRecorder("c")},
		})
	}})
	require.EqualError(t, err, `plugin toy: route orders: the name of an output must be lower-case letters and digits, with . - or _ between them, got ""
plugin toy: route orders: the name of an output must be lower-case letters and digits, with . - or _ between them, got "A b"
plugin toy: route orders: Outputs["audit"] is nil: set its sink`)
}

// A value says to which output it goes, as it says its key.
func TestJSONToOutputs(t *testing.T) {
	t.Parallel()
	handle := pipeline.JSONTo(func(context.Context, struct{}) ([]any, error) {
		return []any{map[string]int{"id": 1}, audited{1}}, nil
	})
	out, err := handle(message.NewMessage("1", []byte(`{}`)))
	require.NoError(t, err)
	require.Len(t, out, 2)
	require.Empty(t, pipeline.OutputOf(out[0]))
	require.Equal(t, "audit", pipeline.OutputOf(out[1]))
	require.JSONEq(t, `{"id":1}`, string(out[1].Payload))
	require.Equal(t, "key", out[1].Metadata.Get(pipeline.MetaKey))
}

type audited struct {
	ID int `json:"id"`
}

func (audited) Output() string { return "audit" }
func (audited) Key() string    { return "key" }
