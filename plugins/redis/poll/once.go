package poll

import (
	"context"

	goredis "github.com/redis/go-redis/v9"
)

// onceCmd is a command that the client never sends again after a network error.
type onceCmd struct{ *goredis.Cmd }

// NoRetry keeps the client from sending the command again.
func (onceCmd) NoRetry() bool { return true }

// runOnce runs a Lua script that must not be sent again: a claim that is repeated finds nothing to claim, and hides that the
// reply of the first, with its entries, was lost. After an error that is no reply (see IsReply) the script may have run.
func runOnce(ctx context.Context, c goredis.UniversalClient, source string, keys []string, args ...any) *goredis.Cmd {
	run := func(name, script string) *goredis.Cmd {
		words := make([]any, 0, 3+len(keys)+len(args))
		words = append(words, name, script, len(keys))
		for _, k := range keys {
			words = append(words, k)
		}
		cmd := onceCmd{goredis.NewCmd(ctx, append(words, args...)...)}
		if len(keys) > 0 {
			cmd.SetFirstKeyPos(3)
		}
		_ = c.Process(ctx, cmd) // the command has it too
		return cmd.Cmd
	}
	cmd := run("evalsha", goredis.NewScript(source).Hash())
	if goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return run("eval", source)
	}
	return cmd
}
