package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/wire"
)

// One command makes a handler a part of the binary, in a copy of the repository. The tests about
// handlers pass afterwards.
func TestAFirstHandlerIsOneCommand(t *testing.T) {
	tier.Rest(t, tier.CLI, tier.Pipeline)
	if testing.Short() {
		t.Skip("compiles a copy of the repository")
	}
	dir := copyOfTheRepository(t)
	in := func(name string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
	in(binary(t), "new", "handler", "greetings")
	require.Contains(t, in("go", "run", "./cmd/millrace", "topology"), "greetings.retry\n  from         kafka greetings-retry\n    group      greetings-retry")
	in("go", "test", "-short", "-timeout", "5m", "./handlers/greetings", "./wire", "./e2e/rules", "./e2e/reference", "./pipeline/app")
}

// copyOfTheRepository copies what is, or could be, under version control. The copies of all tests
// have one path, so that packages are compiled once. One test at a time has a copy.
func copyOfTheRepository(t *testing.T) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = ".."
	names, err := list.Output()
	require.NoError(t, err)
	dir := filepath.Join(workDir, "copy")
	require.NoError(t, os.Mkdir(dir, 0o750), "another test has a copy")
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("..", name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// only is a handler plugin on one topic.
type only struct {
	kafka   *kafka.Plugin
	handled chan string
}

func (only) Name() string { return "only" }

func (o only) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "only", From: o.kafka.Source("only", "only"), Policy: pipeline.Policy{DeadLetter: o.kafka.Sink("only-dead")},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			select {
			case o.handled <- string(m.Payload):
			default: // once is enough
			}
			return nil, nil
		},
	})
	return nil
}

// feed publishes when all else runs.
type feed struct{ kafka *kafka.Plugin }

func (f feed) Start(ctx context.Context) error {
	return f.kafka.Sink("only").Publish(ctx, message.NewMessage("1", []byte("hello")))
}

func (feed) Stop(context.Context) error { return nil }

type feeding struct{ feed }

func (feeding) Name() string { return "feeding" }

func (f feeding) Register(r *pipeline.Registry) error {
	r.Service("feeding", f.feed)
	return nil
}

// A process with one handler needs its own servers only: no Redis, no ledger, no Money API.
func TestAHandlerNeedsItsOwnServersOnly(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })

	plugins := wire.New().Plugins()
	handled := make(chan string, 1)
	for _, p := range plugins {
		if k, ok := p.(*kafka.Plugin); ok {
			plugins = append(plugins, only{k, handled}, feeding{feed{k}})
			break
		}
	}
	file := filepath.Join(t.TempDir(), "only.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
plugins:
  telemetry: {listen: "127.0.0.1:0"}
  kafka: {brokers: [%s]}
  promotion: {enabled: false}
  reclaim: {enabled: false}
  redis: {enabled: false, addrs: ["127.0.0.1:1"]}
`, strings.Join(servers.KafkaAddrs(), ", ")), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- app.Main(ctx, app.Options{
			Name: "millrace", Plugins: plugins, Environments: wire.Environments(), Args: []string{"run", "--config", file}, Environ: []string{},
			Stdout: &log, Stderr: &log,
		})
	}()
	select {
	case got := <-handled:
		require.Equal(t, "hello", got)
	case c := <-code:
		require.FailNow(t, "it ended", "exit code %d: %s", c, &log)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "nothing was handled")
	}
	cancel()
	require.Zero(t, <-code, "%s", &log)
}
