package streams

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis"
)

//go:embed lua/common.lua
var luaCommon string

//go:embed lua/enqueue.lua
var luaEnqueue string

//go:embed lua/create.lua
var luaCreate string

//go:embed lua/visit.lua
var luaVisit string

//go:embed lua/delete.lua
var luaDelete string

//go:embed lua/inspect.lua
var luaInspect string

// scripts are the Lua scripts of this package. All keys of a script hash to one slot.
type scripts struct {
	enqueue, create, visit, delete, inspect *goredis.Script
}

func newScripts() scripts {
	s := func(src string) *goredis.Script { return goredis.NewScript(redis.GroupsLua() + luaCommon + src) }
	return scripts{
		enqueue: s(luaEnqueue),
		create:  s(luaCreate),
		visit:   s(luaVisit),
		delete:  s(luaDelete),
		inspect: s(luaInspect),
	}
}

// The first word of the replies of delete.lua.
const (
	cleanDeleted    = 1
	cleanNotDrained = 0
	cleanAbsent     = -1
)

// visited is the reply of visit.lua.
type visited struct {
	exists, grouped, drained bool
	idleMillis               int64
	length, pending, trimmed int64
	delaying                 []DelayingGroup
}

func parseVisited(v any, err error) (visited, error) {
	if err != nil {
		return visited{}, err
	}
	list, ok := v.([]any)
	if ok && len(list) == 1 && list[0] == int64(0) {
		return visited{}, nil
	}
	if !ok || len(list) != 8 {
		return visited{}, fmt.Errorf("visit: unexpected reply %v", v)
	}
	n, err := integers(list[:7], nil)
	if err != nil {
		return visited{}, err
	}
	delaying, err := redis.ParseDelaying(list[7])
	if err != nil {
		return visited{}, err
	}
	return visited{
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

// runAll runs script once for every pair of keys and arguments, in one pipeline. Where the server
// does not have the script yet, the commands run again one by one, with the script's text.
func runAll(ctx context.Context, c goredis.UniversalClient, script *goredis.Script, keys [][]string, args [][]any) []*goredis.Cmd {
	cmds := make([]*goredis.Cmd, len(keys))
	pipe := c.Pipeline()
	for i := range keys {
		cmds[i] = pipe.EvalSha(ctx, script.Hash(), keys[i], args[i]...)
	}
	// Exec returns the first command's error; each command is checked below.
	_, _ = pipe.Exec(ctx)
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			cmds[i] = script.Run(ctx, c, keys[i], args[i]...)
		}
	}
	return cmds
}
