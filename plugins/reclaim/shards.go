package reclaim

import (
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis"
)

// Shards returns a domain of the setting plugins.redis.domains as a Target. The plugin adds all of
// them by itself.
func Shards(d *redis.Domain) Target { return shards{d} }

type shards struct{ d *redis.Domain }

func (s shards) Domain() string                  { return s.d.Name() }
func (s shards) Client() goredis.UniversalClient { return s.d.Client() }
func (s shards) MinIdle() time.Duration          { return s.d.MinIdle() }

func (s shards) Streams() []Stream {
	reading := s.d.Reading()
	out := make([]Stream, len(reading))
	for i, r := range reading {
		out[i] = Stream{
			Shard: strconv.Itoa(r.Index), Name: r.Stream, Group: r.Group, Consumer: r.Consumer,
			Meta: redis.MetaKey(r.Stream), Reader: r.Reader,
		}
	}
	return out
}

var _ Target = shards{}
