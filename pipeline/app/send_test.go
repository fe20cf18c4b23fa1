package app

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
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

// audited records what is sent to box, and refuses to record a payload.
type audited struct {
	letters
	refused string
}

func (a audited) SendAudit(*pipeline.Registry, string) *SendAudit {
	return &SendAudit{
		Register: func(*pipeline.Registry) error { return nil },
		Record: func(_ context.Context, payload []byte, by By) error {
			if string(payload) == a.refused {
				return errors.New("no right to record")
			}
			*a.sent = append(*a.sent, string(payload)+" recorded as of "+by.Who)
			return nil
		},
	}
}

// What the audit has is sent before an error ends the command, and the count says from where to go on.
func TestSendPublishesWhatItHasRecorded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(file, []byte(`{"value":"a"}`+"\n"+`{"value":"b"}`+"\nno JSON\n"), 0o600))
	for why, args := range map[string][]string{"no JSON object": {"--file", file, "--format", "json"}, "no right to record": {"a", "b", "c"}} {
		var sent []string
		var stderr bytes.Buffer
		code := Main(t.Context(), Options{
			Name: "shop", Plugins: []pipeline.Plugin{audited{letters{&sent}, "c"}}, Args: append([]string{"send", "box", "--key", "k", "--who", "ann", "--why", "x"}, args...),
			Stdout: new(bytes.Buffer), Stderr: &stderr,
		})
		require.NotZero(t, code, why)
		require.Contains(t, stderr.String(), "after 2 records: ")
		require.Contains(t, stderr.String(), why)
		require.Equal(t, []string{"registered", "a recorded as of ann", "b recorded as of ann", "a by k", "b by k"}, sent, why)
	}
}
