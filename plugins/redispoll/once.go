package redispoll

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// onceCmd is a command that the client never sends again after a network error.
type onceCmd struct{ *redis.Cmd }

// NoRetry keeps the client from sending the command again.
func (onceCmd) NoRetry() bool { return true }

// RunOnce runs a Lua script that must not be sent again: a claim that is repeated finds nothing to claim, and hides that the
// reply of the first, with its entries, was lost. After an error that is no reply (see IsReply) the script may have run.
func RunOnce(ctx context.Context, c redis.UniversalClient, source string, keys []string, args ...any) *redis.Cmd {
	run := func(name, script string) *redis.Cmd {
		words := make([]any, 0, 3+len(keys)+len(args))
		words = append(words, name, script, len(keys))
		for _, k := range keys {
			words = append(words, k)
		}
		cmd := onceCmd{redis.NewCmd(ctx, append(words, args...)...)}
		if len(keys) > 0 {
			cmd.SetFirstKeyPos(3)
		}
		_ = c.Process(ctx, cmd) // the command has it too
		return cmd.Cmd
	}
	cmd := run("evalsha", redis.NewScript(source).Hash())
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return run("eval", source)
	}
	return cmd
}

// IsReply reports whether err is an answer of the server: the command was read and refused, and nothing was lost on the way.
func IsReply(err error) bool {
	var r redis.Error
	return errors.As(err, &r) || errors.Is(err, redis.Nil)
}
