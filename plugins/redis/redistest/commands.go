package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// Commands is a hook that notes every command of a client, and can lose replies.
type Commands struct {
	mu    sync.Mutex
	names []string
	bad   []string                      // commands that block or may
	drop  func(cmd goredis.Cmder) error // not nil: the reply is lost
	fail  func(cmd goredis.Cmder) bool  // true: it is not even sent
}

var errReplyLost = errors.New("connection reset by the test")

// Watch adds the hook to a client.
func Watch(c goredis.UniversalClient) *Commands {
	l := &Commands{}
	c.AddHook(l)
	return l
}

// DialHook implements goredis.Hook.
func (l *Commands) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements goredis.Hook.
func (l *Commands) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
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
		drop := l.drop // also when it was set during the command
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

// ProcessPipelineHook implements goredis.Hook.
func (l *Commands) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		for _, cmd := range cmds {
			l.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (l *Commands) note(cmd goredis.Cmder) {
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

// Count returns how often a command was sent; name is in lower case.
func (l *Commands) Count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.names {
		if c == name {
			n++
		}
	}
	return n
}

// Total returns how many commands were sent.
func (l *Commands) Total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.names)
}

// Blocking returns the commands that block, or may.
func (l *Commands) Blocking() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.bad)
}

// LoseReplies loses the reply of every command that f selects.
func (l *Commands) LoseReplies(f func(cmd goredis.Cmder) bool) { l.replace(f, errReplyLost) }

// refusal is an answer of a server that isn't ready.
type refusal struct{}

func (refusal) Error() string { return "LOADING Redis is loading the dataset in memory" }
func (refusal) RedisError()   {}

// Refuse answers every command that f selects with a refusal.
func (l *Commands) Refuse(f func(cmd goredis.Cmder) bool) { l.replace(f, refusal{}) }

func (l *Commands) replace(f func(cmd goredis.Cmder) bool, by error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop = nil
	if f != nil {
		l.drop = func(cmd goredis.Cmder) error {
			if f(cmd) {
				return by
			}
			return nil
		}
	}
}

// FailSending keeps every command that f selects from the server.
func (l *Commands) FailSending(f func(cmd goredis.Cmder) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = f
}
