package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// callTimeout limits Server.Do, including the client's own retries.
const callTimeout = 10 * time.Second

var (
	errNotStarted = errors.New("redis: not started")
	errNotSent    = errors.New("was not sent")
	errUnknown    = errors.New("the server does not have this command")
)

// Script is a Lua script. Safe for concurrent use.
type Script struct {
	name string
	text string
	hash string
}

// NewScript returns the script that consists of the parts. The last part begins with a header,
// `-- name.lua: what it does`. Errors contain that name.
func NewScript(parts ...string) *Script {
	header, _, _ := strings.Cut(parts[len(parts)-1], ":")
	text := strings.Join(parts, "")
	return &Script{name: strings.TrimPrefix(header, "-- "), text: text, hash: goredis.NewScript(text).Hash()}
}

// Call returns a call of the script. All keys have the same slot of a Redis Cluster.
func (s *Script) Call(keys []string, args ...any) *Call {
	c := &Call{script: s, name: s.name, keyAt: 3, err: errNotSent}
	if len(keys) > 0 {
		c.key = keys[0]
	}
	c.args = append(c.args, "evalsha", s.hash, len(keys))
	for _, key := range keys {
		c.args = append(c.args, key)
	}
	c.args = append(c.args, args...)
	return c
}

// Command returns a call of a command whose first argument is its key: Command("GET", "key").
func Command(args ...any) *Call { return commandKey(1, args...) }

// commandKey is Command with the key at another index of args, for example 3 in
// commandKey(3, "XREAD", "COUNT", ...).
func commandKey(at int, args ...any) *Call {
	return &Call{name: fmt.Sprint(args[0]), key: fmt.Sprint(args[at]), keyAt: at, args: args, err: errNotSent}
}

// Call is one command or script, and its reply after Server.Do. Its errors contain the name and the
// key, never other arguments. It is not safe for concurrent use.
type Call struct {
	script *Script // nil: a command
	name   string
	key    string
	keyAt  int
	args   []any
	once   bool

	reply any
	err   error
}

// Once makes the client never re-send the call: after an error that is no reply it has run once or
// not at all. Other calls of the same Do on the same node are then not re-sent either.
func (c *Call) Once() *Call {
	c.once = true
	return c
}

// Err returns the error of the call. A nil reply is no error.
func (c *Call) Err() error { return c.err }

// Missing reports whether the reply is nil: the key or field does not exist.
func (c *Call) Missing() bool { return c.err == nil && c.reply == nil }

// Int returns an integer reply, or a text that is an integer. A nil reply is 0.
func (c *Call) Int() (int64, error) {
	switch v := c.reply.(type) {
	case int64:
		return v, c.err
	case string:
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n, c.err
		}
	}
	return 0, c.unexpected("an integer")
}

// Text returns a text reply. A nil reply is "".
func (c *Call) Text() (string, error) {
	if v, ok := text(c.reply); ok {
		return v, c.err
	}
	return "", c.unexpected("a text")
}

// Texts returns a list of texts. A nil reply is an empty list, and a nil in a list is "".
func (c *Call) Texts() ([]string, error) {
	list, err := c.List()
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, v := range list {
		var ok bool
		if out[i], ok = text(v); !ok {
			return nil, c.unexpected("a list of texts")
		}
	}
	return out, nil
}

// List returns a list of int64, string, nil or []any. A nil reply is an empty list.
func (c *Call) List() ([]any, error) {
	if v, ok := c.reply.([]any); ok {
		return v, c.err
	}
	return nil, c.unexpected("a list")
}

// text returns the text of a reply that is not a list.
func text(reply any) (string, bool) {
	switch v := reply.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case int64:
		return strconv.FormatInt(v, 10), true
	}
	return "", false
}

// unexpected returns the error of the call, or that the reply is not of the expected kind. A nil
// reply is of each kind.
func (c *Call) unexpected(want string) error {
	if c.err != nil || c.reply == nil {
		return c.err
	}
	return fmt.Errorf("%s on %q: the reply is %T, not %s", c.name, c.key, c.reply, want)
}

// sentCmd is a command that the client does not re-send when it may run only once.
type sentCmd struct {
	*goredis.Cmd
	once bool
}

// NoRetry implements goredis.Cmder.
func (c sentCmd) NoRetry() bool { return c.once }

// command returns the command to send: a script by its hash, or by its text.
func (c *Call) command(ctx context.Context, byText bool) sentCmd {
	args := c.args
	if c.script != nil && byText {
		args = append([]any{"eval", c.script.text}, args[2:]...)
	}
	cmd := sentCmd{goredis.NewCmd(ctx, args...), c.once}
	cmd.SetFirstKeyPos(int8(c.keyAt)) //nolint:gosec // a small index
	return cmd
}

// take stores the reply.
func (c *Call) take(cmd sentCmd) {
	reply, err := cmd.Result()
	if err != nil && strings.Contains(err.Error(), "unknown command") {
		err = errUnknown // the server's text contains the arguments
	}
	c.reply, c.err = reply, nil
	if err != nil && !errors.Is(err, goredis.Nil) {
		c.reply, c.err = nil, poll.WithRemedy(fmt.Errorf("%s on %q: %w", c.name, c.key, err))
	}
}

// Do sends the calls in one pipeline per node, and takes at most 10 s. Calls of one node run in
// their order. A script that the server does not have is sent again with its text, after the other
// calls. A node that fails or does not answer fails only its own calls. Each call has its own reply
// and error; the error of Do contains the first few errors.
//
// After a network error the client sends the calls again (max_retries), unless one is Call.Once.
func (s *Server) Do(ctx context.Context, calls ...*Call) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := s.Client()
	if client == nil {
		for _, c := range calls {
			c.err = errNotStarted
		}
		return errNotStarted
	}
	sendAll(ctx, client, calls)
	return joined(calls)
}

// sendAll sends the calls to all nodes at once.
func sendAll(ctx context.Context, client goredis.UniversalClient, calls []*Call) {
	var nodes sync.WaitGroup
	for _, part := range perNode(ctx, client, calls) {
		nodes.Go(func() { send(ctx, client, part) })
	}
	nodes.Wait()
}

// perNode divides the calls by the node that has their key. In one pipeline the client's error
// about one node can replace the replies of others.
func perNode(ctx context.Context, client goredis.UniversalClient, calls []*Call) map[*goredis.Client][]*Call {
	parts := map[*goredis.Client][]*Call{}
	for _, c := range calls {
		node := nodeOf(ctx, client, c.key) // an error will be that of the call
		parts[node] = append(parts[node], c)
	}
	return parts
}

// nodeOf returns the node of a Cluster that has a key. It is nil without a Cluster, and after an
// error.
func nodeOf(ctx context.Context, client goredis.UniversalClient, key string) *goredis.Client {
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		return nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return nil
	}
	return node
}

// Node returns the address of the Cluster's node that has a key. It is empty without a Cluster, and
// while the node is unknown.
func (s *Server) Node(ctx context.Context, key string) string {
	if node := nodeOf(ctx, s.Client(), key); node != nil {
		return node.Options().Addr
	}
	return ""
}

// ErrNotReplicated means that too few replicas have a call that has run. The caller repeats it.
var ErrNotReplicated = errors.New("redis: too few replicas have the change")

// DoReplicated sends a call, and waits until that many replicas have its changes. The error wraps
// ErrNotReplicated when they do not have them in time; the call then has its reply. The wait is
// shorter than the client's read timeout.
func (s *Server) DoReplicated(ctx context.Context, replicas int, wait time.Duration, c *Call) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := s.Client()
	if client == nil {
		c.err = errNotStarted
		return errNotStarted
	}
	w := &Call{name: "WAIT", key: c.key, args: []any{"wait", replicas, wait.Milliseconds()}}
	if cluster, ok := client.(*goredis.ClusterClient); ok {
		sendToMaster(ctx, cluster, c, w)
	} else {
		send(ctx, client, []*Call{c, w})
	}
	if err := joined([]*Call{c, w}); err != nil {
		return err
	}
	if n, err := w.Int(); err != nil || n < int64(replicas) {
		return errors.Join(fmt.Errorf("%s on %q: %w: %d of %d", c.name, c.key, ErrNotReplicated, n, replicas), err)
	}
	return nil
}

// sendToMaster sends a call and its WAIT to the node that has the key, because the pipelines of a Cluster refuse WAIT. It
// follows a slot that is being moved until ctx ends.
func sendToMaster(ctx context.Context, cluster *goredis.ClusterClient, c, w *Call) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		node, err := cluster.MasterForKey(ctx, c.key)
		if err != nil {
			c.err = err
			return
		}
		send(ctx, node, []*Call{c, w})
		if addr, asked := goredis.IsAskError(c.err); asked {
			sendAsking(ctx, node, addr, c, w)
		}
		// Neither has changed anything. The client reads the slots again in the background.
		if _, moved := goredis.IsMovedError(c.err); !moved && !goredis.IsTryAgainError(c.err) {
			return
		}
		cluster.ReloadState(ctx)
		if !loop.Sleep(ctx, pause) {
			return
		}
	}
}

// sendAsking sends a call and its WAIT to the node that imports the slot of the key. The connection is of its own, because
// the Cluster's client does not know a node that has no slots yet.
func sendAsking(ctx context.Context, node *goredis.Client, addr string, c, w *Call) {
	o := *node.Options()
	o.Addr = addr
	importer := goredis.NewClient(&o)
	defer func() { _ = importer.Close() }()
	pipe, cmds := importer.Pipeline(), []sentCmd{c.command(ctx, true), w.command(ctx, true)}
	_ = pipe.Process(ctx, goredis.NewCmd(ctx, "asking"))
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	c.take(cmds[0])
	w.take(cmds[1])
}

// send sends calls in one pipeline, and those whose script is missing in another one. A WAIT
// follows them there.
func send(ctx context.Context, client goredis.UniversalClient, calls []*Call) {
	for _, byText := range []bool{false, true} {
		if len(calls) == 0 {
			return
		}
		cmds, pipe := make([]sentCmd, len(calls)), client.Pipeline()
		for i, c := range calls {
			cmds[i] = c.command(ctx, byText)
			_ = pipe.Process(ctx, cmds[i])
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		var missing []*Call
		for i, c := range calls {
			c.take(cmds[i])
			missed := c.script != nil && goredis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT")
			if missed || len(missing) > 0 && c.name == "WAIT" {
				missing = append(missing, c)
			}
		}
		calls = missing
	}
}

// joinedMost is how many errors of calls the error of Do contains.
const joinedMost = 3

// joined returns the errors of the calls as one.
func joined(calls []*Call) error {
	var failed []error
	for _, c := range calls {
		if c.err != nil {
			failed = append(failed, c.err)
		}
	}
	if more := len(failed) - joinedMost; more > 0 {
		failed = append(failed[:joinedMost], fmt.Errorf("and %d more calls failed", more))
	}
	return errors.Join(failed...)
}
