package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// node is one server of Redis or Valkey that a scenario starts in addition to the fleet's.
type node struct {
	t       *testing.T
	program string
	addr    string
	args    []string
	cmd     *exec.Cmd
	done    chan struct{} // closed when the process has ended; nil before run
	*redis.Client
}

// startNode starts a server on a free port; args are more options for it.
func startNode(t *testing.T, program string, args ...string) *node {
	t.Helper()
	n := newNode(t, program)
	n.args = append([]string{"--port", n.port(), "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no"}, args...)
	n.run()
	return n
}

// startSentinel starts the one sentinel of a primary and waits until it has found the replica. A
// sentinel without CPU for two seconds does nothing for the next thirty (TILT). It then accepts no
// replica whose link was down for too long before the primary failed, so down-after-milliseconds is
// large.
func startSentinel(t *testing.T, name string, primary *node) *node {
	t.Helper()
	n := newNode(t, primary.program)
	file := filepath.Join(t.TempDir(), "sentinel.conf") // which it writes to
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds %[2]s 5000\nsentinel failover-timeout %[2]s 5000\n", n.port(), name, primary.port()), 0o600))
	n.args = []string{file, "--sentinel"}
	n.run()
	n.shows(n.section("sentinel"), "status=ok")
	n.shows(n.section("sentinel"), "slaves=1")
	return n
}

// newNode is a server that is not started yet. Its client connects as options say.
func newNode(t *testing.T, program string, options ...func(*redis.Options)) *node {
	t.Helper()
	addr, err := freePort()
	require.NoError(t, err)
	o := &redis.Options{Addr: addr}
	for _, option := range options {
		option(o)
	}
	n := &node{t: t, program: program, addr: addr, Client: redis.NewClient(o)}
	t.Cleanup(func() {
		_ = n.Close()
		n.kill()
	})
	return n
}

func (n *node) run() {
	n.t.Helper()
	n.cmd = exec.Command(n.program, n.args...)
	done, err := startBound(n.cmd)
	require.NoError(n.t, err)
	n.done = done
	n.await("it answers", func() error { return n.Ping(n.t.Context()).Err() })
}

func (n *node) kill() {
	if n.done != nil {
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}

// await waits until check returns nil: the TILT of a sentinel ends, and an election without a
// winner is repeated.
func (n *node) await(what string, check func() error) {
	n.t.Helper()
	require.NoError(n.t, until(n.t.Context(), 90*time.Second, n.program+" at "+n.addr+": "+what, check))
}

// shows waits until the server's own report contains the text.
func (n *node) shows(tell func(context.Context) *redis.StringCmd, text string) {
	n.t.Helper()
	n.await("it shows "+text, func() error {
		told, err := tell(n.t.Context()).Result()
		if err == nil && !strings.Contains(told, text) {
			err = errors.New(told)
		}
		return err
	})
}

// section is a section of INFO.
func (n *node) section(name string) func(context.Context) *redis.StringCmd {
	return func(ctx context.Context) *redis.StringCmd { return n.Info(ctx, name) }
}

// empties waits until idle streams are cleaned up, and nothing of the promotions is left but the
// wake-up streams.
func (n *node) empties() {
	n.t.Helper()
	n.await("idle streams are cleaned up", func() error {
		left, err := n.Keys(n.t.Context(), "*campaign-promotion-*").Result()
		left = slices.DeleteFunc(left, func(key string) bool { return strings.HasSuffix(key, ":wake") })
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there are %v", left)
		}
		return err
	})
}

func (n *node) port() string {
	_, port, _ := net.SplitHostPort(n.addr)
	return port
}

func (n *node) must(args ...any) any {
	n.t.Helper()
	v, err := n.Do(n.t.Context(), args...).Result()
	require.NoError(n.t, err, "%v", args)
	return v
}

// id is the name that the other nodes of its cluster use for it.
func (n *node) id() string { n.t.Helper(); return n.must("CLUSTER", "MYID").(string) }

// restrict makes the user of redis's README, with theirPassword and more rules.
func (n *node) restrict(more ...string) {
	n.t.Helper()
	text, err := os.ReadFile("../plugins/redis/README.md")
	require.NoError(n.t, err)
	found := regexp.MustCompile(`(?s)\nACL SETUSER millrace (.*?)\n` + "```").FindSubmatch(text)
	require.NotNil(n.t, found, "the README of redis names the user's rights")
	args := []any{"ACL", "SETUSER", "millrace"}
	for _, rule := range append(strings.Fields(strings.ReplaceAll(string(found[1]), "\\\n", " ")), more...) {
		args = append(args, strings.ReplaceAll(rule, "PASSWORD", theirPassword))
	}
	n.must(args...)
}

// refusedNothing asserts that the server refused no command of the restricted user.
func (n *node) refusedNothing() {
	n.t.Helper()
	require.Empty(n.t, n.must("ACL", "LOG"), "%s at %s refused something", n.program, n.addr)
}
