package app

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// A send without values reads standard input.
func TestSendReadsStandardInput(t *testing.T) {
	t.Parallel()
	var got []string
	for line, err := range readLines(bytes.NewBufferString("a\n\nb")) {
		require.NoError(t, err)
		got = append(got, line)
	}
	require.Equal(t, []string{"a", "", "b"}, got)
}

// letters is a transport with one topic.
type letters struct{ sent *[]string }

func (letters) Name() string                      { return "letters" }
func (letters) Register(*pipeline.Registry) error { return nil }

func (l letters) Send(topic string) (Sending, error) {
	if topic != "box" {
		return Sending{}, errors.New("the only topic is box")
	}
	return Sending{Sink: l, Register: func(*pipeline.Registry) error {
		*l.sent = append(*l.sent, "registered")
		return nil
	}}, nil
}

func (letters) Describe() pipeline.Endpoint { return pipeline.Endpoint{Kind: "letters", Name: "box"} }

func (l letters) Publish(_ context.Context, msgs ...*message.Message) error {
	for _, m := range msgs {
		*l.sent = append(*l.sent, string(m.Payload)+" by "+m.Metadata[pipeline.MetaKey])
	}
	return nil
}

// Any transport can have the command, and a binary without one does not have it.
func TestSendPublishesToTheTransportOfTheBinary(t *testing.T) {
	t.Parallel()
	var sent []string
	run := func(args []string, plugins ...pipeline.Plugin) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		code = Main(t.Context(), Options{Name: "shop", Plugins: plugins, Args: append([]string{"send"}, args...), Stdout: &stdout, Stderr: &stderr})
		return code, stdout.String(), stderr.String()
	}
	code, out, errs := run([]string{"box", "a", "b", "--key", "ann"}, letters{&sent})
	require.Zero(t, code, errs)
	require.Equal(t, "2 records sent to box.\n", out)
	require.Contains(t, errs, "No route of these settings reads box")
	require.Equal(t, []string{"registered", "a by ann", "b by ann"}, sent)
	code, _, errs = run([]string{"bin", "a"}, letters{&sent})
	require.Equal(t, ExitUsage, code)
	require.Contains(t, errs, "the only topic is box")
	code, _, errs = run([]string{"box", "a"})
	require.Equal(t, ExitUsage, code)
	require.Contains(t, errs, `unknown command "send"`)
}
