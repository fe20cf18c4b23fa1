package reclaim

import (
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/lease.lua
	leaseSource string
	//go:embed lua/release.lua
	releaseSource string
	//go:embed lua/remove.lua
	removeSource string
)

// scripts are the Lua scripts of this package. All keys of a script hash to one slot.
type scripts struct{ lease, release, remove *redis.Script }

func newScripts() scripts {
	return scripts{
		redis.NewScript(leaseSource), redis.NewScript(releaseSource), redis.NewScript(removeSource),
	}
}
