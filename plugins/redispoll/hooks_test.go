package redispoll_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// commandLog is a hook that notes every command and can lose replies.
type commandLog struct {
	mu    sync.Mutex
	names []string
	bad   []string                    // commands that block or may
	drop  func(cmd redis.Cmder) error // after the server has run it; not nil: the reply is lost with this error
	fail  func(cmd redis.Cmder) bool  // true: it is not even sent
}

var errReplyLost = errors.New("connection reset by the test")

func watch(c redis.UniversalClient) *commandLog {
	l := &commandLog{}
	c.AddHook(l)
	return l
}

func (l *commandLog) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *commandLog) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.note(cmd)
		l.mu.Lock()
		fail := l.fail
		l.mu.Unlock()
		if fail != nil && fail(cmd) {
			cmd.SetErr(errReplyLost)
			return errReplyLost
		}
		err := next(ctx, cmd)
		l.mu.Lock()
		drop := l.drop // asked for now: a command that was under way when it was set brings what came after
		l.mu.Unlock()
		if err == nil && drop != nil {
			if lost := drop(cmd); lost != nil {
				cmd.SetErr(lost)
				return lost
			}
		}
		return err
	}
}

func (l *commandLog) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			l.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (l *commandLog) note(cmd redis.Cmder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := strings.ToLower(cmd.Name())
	l.names = append(l.names, name)
	blocks := slices.Contains([]string{"blpop", "brpop", "brpoplpush", "blmove", "blmpop", "bzpopmin", "bzpopmax", "bzmpop", "wait", "waitaof"}, name)
	if name == "xread" || name == "xreadgroup" {
		for _, a := range cmd.Args() {
			blocks = blocks || strings.EqualFold(fmt.Sprint(a), "block")
		}
	}
	if blocks {
		l.bad = append(l.bad, cmd.String())
	}
}

func (l *commandLog) count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.names {
		if c == name {
			n++
		}
	}
	return n
}

func (l *commandLog) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.names)
}

func (l *commandLog) blocking() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bad)
}

// loseReplies loses the reply of every command that f picks.
func (l *commandLog) loseReplies(f func(cmd redis.Cmder) bool) { l.replace(f, errReplyLost) }

// refusal is an answer of a server that isn't ready.
type refusal struct{}

func (refusal) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (refusal) RedisError()   {}

// refuse answers every command that f picks with a refusal.
func (l *commandLog) refuse(f func(cmd redis.Cmder) bool) { l.replace(f, refusal{}) }

func (l *commandLog) replace(f func(cmd redis.Cmder) bool, by error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop = nil
	if f != nil {
		l.drop = func(cmd redis.Cmder) error {
			if f(cmd) {
				return by
			}
			return nil
		}
	}
}

// failSending keeps every command that f picks from the server.
func (l *commandLog) failSending(f func(cmd redis.Cmder) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}

// The hook itself must be able to fail a test: a log that sees nothing proves nothing.
func TestCommandLogSeesBlockingCommands(t *testing.T) {
	t.Parallel()
	l := &commandLog{}
	ctx := context.Background()
	l.note(redis.NewCmd(ctx, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"))
	l.note(redis.NewCmd(ctx, "blpop", "x", 0))
	l.note(redis.NewCmd(ctx, "xreadgroup", "group", "g", "c", "count", 1, "streams", "s", ">"))
	require.Len(t, l.blocking(), 2)
}
