package reclaim

import (
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis"
)

// Readings are the streams of a *redis.Domain or *redis.Family.
type Readings interface {
	Name() string
	Client() goredis.UniversalClient
	MinIdle() time.Duration
	Reading() []redis.Shard
}

// Shards returns a domain or a family as a Target. The plugin adds the domains of the setting
// plugins.redis.domains by itself. All streams of a family have the shard 0.
func Shards(d Readings) Target { return shards{d} }

type shards struct{ d Readings }

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
