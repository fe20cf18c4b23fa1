package redistest

import (
	"context"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A hook that sees nothing would prove nothing.
func TestCommandsSeesBlockingCommands(t *testing.T) {
	t.Parallel()
	l := &Commands{}
	ctx := context.Background()
	l.note(goredis.NewCmd(ctx, "XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">"))
	l.note(goredis.NewCmd(ctx, "blpop", "x", 0))
	l.note(goredis.NewCmd(ctx, "xreadgroup", "group", "g", "c", "count", 1, "streams", "s", ">"))
	require.Len(t, l.Blocking(), 2)
}
