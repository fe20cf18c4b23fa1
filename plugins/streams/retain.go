package streams

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis"
)

//go:embed lua/retain.lua
var luaRetain string

// retainStep is how many entries one call removes because of their age.
const retainStep = 10_000

// Retainer bounds a stream that other programs read, and that nothing else trims. Safe for
// concurrent use.
type Retainer struct {
	// Stream is its key.
	Stream string
	// Retention is how long an entry is kept, whether or not it was read, by its id. An entry whose id
	// is ahead of the server's clock is kept for at least that long and at most twice as long.
	Retention time.Duration
	// RequiredGroups are consumer groups that read the stream. When all of them exist, an entry
	// that every group of the stream has acknowledged is removed at once. Empty: only its age
	// counts.
	RequiredGroups []string
}

// Trim removes what needs no longer be kept, and returns how many entries were removed and how many
// are left. Old entries are removed in whole nodes of the stream (100 entries by default), so a few
// may stay longer.
func (r Retainer) Trim(ctx context.Context, c goredis.UniversalClient) (removed, remaining int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reply, err := integers(goredis.NewScript(redis.GroupsLua()+luaRetain).Run(ctx, c, []string{r.Stream, MetaKey(r.Stream)},
		r.Retention.Milliseconds(), strings.Join(r.RequiredGroups, "\n"), retainStep).Result())
	if err == nil && len(reply) != 2 {
		err = fmt.Errorf("unexpected reply %v", reply)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("streams: trim %s: %w", r.Stream, err)
	}
	return reply[0], reply[1], nil
}
