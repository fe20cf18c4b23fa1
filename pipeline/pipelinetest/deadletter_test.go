package pipelinetest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

var _ deadletter.Transport = (*directory)(nil)

// greetings is a handler of a module of its own, whose topics and dead letters are files.
type greetings struct {
	topics  pipeline.Topics
	dead    *deadletter.Plugin
	refused error
	greeted chan string
}

func (greetings) Name() string    { return "greetings" }
func (greetings) Needs() []string { return []string{"deadletter"} } // which needs the transport

func (g greetings) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "greetings", From: g.topics.Source("greetings", "greetings"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if g.refused == nil {
				g.greeted <- string(m.Payload)
			}
			return nil, g.refused
		},
		Policy: pipeline.Policy{DeadLetter: g.dead.Sink("greetings-dead")},
	})
	return nil
}

// binary is the program of that module.
type binary struct {
	root, store string
	refused     error
	without     bool // the transport is not one of its plugins
	greeted     chan string
}

func newBinary(t *testing.T) binary {
	dir := t.TempDir()
	return binary{root: filepath.Join(dir, "topics"), store: "sqlite:" + filepath.Join(dir, "letters.db"), greeted: make(chan string, 10)}
}

func (b binary) run(ctx context.Context, stdout *pipelinetest.Buffer, args ...string) (code int, said string) {
	d := &directory{root: b.root}
	dead := deadletter.New(d).StoreIn(sqldb.Databases{})
	plugins := []pipeline.Plugin{d, dead, greetings{d, dead, b.refused, b.greeted}}
	if b.without {
		plugins = []pipeline.Plugin{dead, &needless{greetings{d, dead, b.refused, b.greeted}}}
	}
	var errs bytes.Buffer
	code = app.Main(ctx, app.Options{
		Name: "greeter", Plugins: plugins, Args: args, Stdout: stdout, Stderr: &errs,
		Environ: []string{"GREETER__PLUGINS__DEADLETTER__STORE__DSN=" + b.store},
	})
	return code, errs.String()
}

// needless hides which plugins greetings needs.
type needless struct{ g greetings }

func (n *needless) Name() string                        { return n.g.Name() }
func (n *needless) Register(r *pipeline.Registry) error { return n.g.Register(r) }

// during runs the service while do does its work.
func (b binary) during(t *testing.T, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan string, 1)
	go func() {
		var out pipelinetest.Buffer
		code, said := b.run(ctx, &out, "run")
		if code == 0 {
			said = ""
		}
		ended <- said
	}()
	do()
	cancel()
	require.Empty(t, <-ended)
}

func (b binary) command(t *testing.T, args ...string) string {
	t.Helper()
	var out pipelinetest.Buffer
	code, said := b.run(t.Context(), &out, args...)
	require.Zero(t, code, said)
	return out.String()
}

func (b binary) hasDeadLetter(ctx context.Context) func() bool {
	return func() bool {
		var out pipelinetest.Buffer
		code, _ := b.run(ctx, &out, "deadletter", "list", "--json")
		return code == 0 && strings.Contains(out.String(), `"total": 1`)
	}
}

// A transport without a service has dead letters, and they are replayed into it.
func TestADirectoryHasDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBinary(t)
	b.command(t, "migrate")
	require.NoError(t, (&directory{root: b.root}).Sink("greetings").Publish(t.Context(), message.NewMessage("1", []byte("Ann"))))
	b.refused = pipeline.Permanent(errors.New("nobody is there"))
	b.during(t, func() { require.Eventually(t, b.hasDeadLetter(t.Context()), 2*time.Minute, 50*time.Millisecond) })
	b.command(t, "deadletter", "replay", "--all", "--why", "somebody is there now")
	b.refused = nil
	b.during(t, func() {
		require.Eventually(t, func() bool { return len(b.greeted) == 1 }, 2*time.Minute, 50*time.Millisecond)
	})
	require.Equal(t, "Ann", <-b.greeted)
}

// A file that is no message keeps its bytes, so a replay makes a message of them.
func TestAMalformedFileKeepsItsBytes(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"no JSON": `{"name":`, "no message": `{"name":"Ann"}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBinary(t)
			b.command(t, "migrate")
			require.NoError(t, os.MkdirAll(filepath.Join(b.root, "greetings"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(b.root, "greetings", "1"), []byte(content), 0o600))
			b.during(t, func() { require.Eventually(t, b.hasDeadLetter(t.Context()), 2*time.Minute, 50*time.Millisecond) })
			require.Empty(t, b.greeted)
			b.command(t, "deadletter", "replay", "--all", "--why", "they can be read")
			b.during(t, func() {
				require.Eventually(t, func() bool { return len(b.greeted) == 1 }, 2*time.Minute, 50*time.Millisecond)
			})
			require.Equal(t, content, <-b.greeted)
		})
	}
}

func TestDeadLettersNeedTheirTransport(t *testing.T) {
	t.Parallel()
	b := newBinary(t)
	b.without = true
	b.command(t, "migrate")
	var out pipelinetest.Buffer
	code, said := b.run(t.Context(), &out, "run")
	require.Equal(t, app.ExitUsage, code, said)
	require.Contains(t, said, "the dead-letter topic greetings-dead needs plugin directory, which this binary does not have")
}
