package redis

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/app"
)

//go:embed lua/guard.lua
var guardSource string

// guardKey is the hash with what all processes must agree about.
func guardKey(prefix string) string { return "millrace:domain:" + prefix }

// probesOf returns keys with the names of shards and companions, for the check of rights.
func probesOf(domains []DomainConfig) []string {
	var keys []string
	for _, d := range domains {
		probe := d.Prefix + ":probe"
		keys = append(keys, probe, MetaKey(probe))
	}
	return keys
}

// guard stores the shards and the group of each domain at its first start, and whether it is
// exclusive. It compares them at each later start. With another count, the producers and readers of
// the same key would use different shards. A reader without exclusive would ignore the leases of
// the others.
func guard(ctx context.Context, c goredis.UniversalClient, domains []DomainConfig) error {
	script := goredis.NewScript(guardSource)
	var errs []error
	for _, d := range domains {
		key := guardKey(d.Prefix)
		stored, err := script.Run(ctx, c, []string{key}, d.Shards, d.Group, strconv.FormatBool(d.Exclusive)).StringSlice()
		switch {
		case err != nil:
			return poll.WithRemedy(fmt.Errorf("domain %s: guard.lua: %w", d.Prefix, err))
		case len(stored) != 3:
			return fmt.Errorf("domain %s: guard.lua: unexpected reply %v", d.Prefix, stored)
		case stored[0] != strconv.Itoa(d.Shards) || stored[1] != d.Group || stored[2] != strconv.FormatBool(d.Exclusive):
			errs = append(errs, app.Usage("plugins.redis.domains: %s was first started with shards %s, group %q and exclusive %s, the settings have shards %d, group %q and exclusive %t. "+
				"Restore the settings, or use a new prefix. If no process uses the domain and its streams are empty: redis-cli DEL %s",
				d.Prefix, stored[0], stored[1], stored[2], d.Shards, d.Group, d.Exclusive, key))
		}
	}
	return errors.Join(errs...)
}
