package streams

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redispoll"
)

//go:embed lua/common.lua
var luaCommon string

//go:embed lua/enqueue.lua
var luaEnqueue string

//go:embed lua/create.lua
var luaCreate string

//go:embed lua/tend.lua
var luaTend string

//go:embed lua/delete.lua
var luaDelete string

//go:embed lua/inspect.lua
var luaInspect string

//go:embed lua/trim.lua
var luaTrim string

// scripts are the Lua scripts of this package. All keys of a script hash to one slot.
type scripts struct {
	enqueue, create, tend, delete, inspect, trim *redis.Script
}

func newScripts() scripts {
	s := func(src string) *redis.Script { return redis.NewScript(redispoll.GroupsLua() + luaCommon + src) }
	return scripts{
		enqueue: s(luaEnqueue),
		create:  s(luaCreate),
		tend:    s(luaTend),
		delete:  s(luaDelete),
		inspect: s(luaInspect),
		trim:    s(luaTrim),
	}
}

// What delete.lua answers.
const (
	cleanDeleted    = 1
	cleanNotDrained = 0
	cleanAbsent     = -1
)

// tended is the reply of tend.lua.
type tended struct {
	exists, grouped, drained bool
	idleMillis               int64
	length, pending, trimmed int64
	delaying                 []DelayingGroup
}

func parseTended(v any, err error) (tended, error) {
	if err != nil {
		return tended{}, err
	}
	list, ok := v.([]any)
	if ok && len(list) == 1 && list[0] == int64(0) {
		return tended{}, nil
	}
	if !ok || len(list) != 8 {
		return tended{}, fmt.Errorf("tend: unexpected reply %v", v)
	}
	n, err := integers(list[:7], nil)
	if err != nil {
		return tended{}, err
	}
	delaying, err := redispoll.ParseDelaying(list[7])
	if err != nil {
		return tended{}, err
	}
	return tended{
		exists: true, grouped: n[1] == 1, drained: n[2] == 1, idleMillis: n[3], length: n[4], pending: n[5], trimmed: n[6],
		delaying: delaying,
	}, nil
}

func integers(v any, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("unexpected reply %v", v)
	}
	out := make([]int64, len(list))
	for i, e := range list {
		if out[i], ok = e.(int64); !ok {
			return nil, fmt.Errorf("unexpected reply %v", v)
		}
	}
	return out, nil
}

// runAll runs script once for every pair of keys and arguments, in one pipeline. A server that does
// not know the script yet is taught it by the plain way, one command at a time.
func runAll(ctx context.Context, c redis.UniversalClient, script *redis.Script, keys [][]string, args [][]any) []*redis.Cmd {
	cmds := make([]*redis.Cmd, len(keys))
	pipe := c.Pipeline()
	for i := range keys {
		cmds[i] = pipe.EvalSha(ctx, script.Hash(), keys[i], args[i]...)
	}
	// The error of the whole is the first error of its commands, and those are looked at one by one.
	_, _ = pipe.Exec(ctx)
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			cmds[i] = script.Run(ctx, c, keys[i], args[i]...)
		}
	}
	return cmds
}
