package reclaim

import (
	_ "embed" // the scripts
	"fmt"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/lease.lua
	leaseSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/rescue.lua
	rescueSource string
	//go:embed lua/forget.lua
	forgetSource string
)

// scripts are the Lua scripts of this package. All keys of a script hash to one slot.
// rescue.lua is not among them: it is never sent again (redispoll.RunOnce).
type scripts struct{ lease, release, forget *redis.Script }

func newScripts() scripts {
	return scripts{
		redis.NewScript(leaseSource), redis.NewScript(releaseSource), redis.NewScript(forgetSource),
	}
}

// claimed is what one claim brought.
type claimed struct {
	entries   []redis.XMessage
	delivered map[string]int64
	lost      []string // were pending, but their entries are deleted
}

// parseRescue reads the reply of rescue.lua.
func parseRescue(reply []any) (claimed, error) {
	bad := func() (claimed, error) { return claimed{}, fmt.Errorf("rescue.lua: unexpected reply %v", reply) }
	if len(reply) != 2 {
		return bad()
	}
	entries, ok1 := reply[0].([]any)
	lost, ok2 := reply[1].([]any)
	if !ok1 || !ok2 {
		return bad()
	}
	c := claimed{delivered: make(map[string]int64, len(entries))}
	for _, e := range entries {
		parts, ok := e.([]any)
		if !ok || len(parts) != 3 {
			return bad()
		}
		id, ok1 := parts[0].(string)
		n, ok2 := parts[1].(int64)
		flat, ok3 := parts[2].([]any)
		if !ok1 || !ok2 || !ok3 || len(flat)%2 != 0 {
			return bad()
		}
		values := make(map[string]any, len(flat)/2)
		for i := 0; i < len(flat); i += 2 {
			field, ok := flat[i].(string)
			if !ok {
				return bad()
			}
			values[field] = flat[i+1]
		}
		c.entries = append(c.entries, redis.XMessage{ID: id, Values: values})
		c.delivered[id] = n
	}
	for _, l := range lost {
		id, ok := l.(string)
		if !ok {
			return bad()
		}
		c.lost = append(c.lost, id)
	}
	return c, nil
}
