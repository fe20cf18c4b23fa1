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

// probeKey is the key of the check of rights.
const probeKey = "millrace:probe"

// CheckRights checks that the user of c may run all commands of the plugins on each of the keys.
// The keys do not exist before or after it. The error wraps pipeline.ErrUnavailable and names the
// missing rights.
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
