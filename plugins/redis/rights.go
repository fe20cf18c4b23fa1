package redis

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

//go:embed lua/rights.lua
var rightsSource string

// probeKey is where the plugin looks whether it may run its commands.
const probeKey = "millrace:probe"

// CheckRights finds out whether the user of c may run every command that the plugins use on each of the keys, which
// must not exist and don't exist afterwards. The error wraps pipeline.ErrUnavailable and names the missing rights.
func CheckRights(ctx context.Context, c goredis.UniversalClient, keys ...string) error {
	script := goredis.NewScript(rightsSource)
	for _, key := range keys {
		denied, err := script.Run(ctx, c, []string{key}).StringSlice()
		if err != nil {
			return poll.WithRemedy(fmt.Errorf("check of the rights on key %q: %w", key, err))
		}
		if len(denied) > 0 {
			return fmt.Errorf("redis: %w: the ACL user may not run these commands on key %q: %s", pipeline.ErrUnavailable, key, strings.Join(denied, ", "))
		}
	}
	return nil
}
