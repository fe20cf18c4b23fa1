package eventrouter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

const (
	// shardsEvery is the time between two looks at the keys of the shards.
	shardsEvery = 10 * time.Second
	// shardsWarnEvery limits the warnings about streams that no router reads.
	shardsWarnEvery = time.Minute
)

// shardCheck looks at the keys of the shards of all domains: whether they are streams, and whether
// producers write to more of them than the routers read. Safe for concurrent use.
type shardCheck struct {
	server  *redis.Server
	domains []redis.DomainConfig
	log     *slog.Logger
	sampled *logs.Throttle

	mu    sync.Mutex
	next  time.Time         // of the next look
	last  error             // of the last look
	wrong map[string]string // of the last look: stream -> what is wrong with it
}

func newShardCheck(server *redis.Server, domains []redis.DomainConfig, log *slog.Logger) *shardCheck {
	return &shardCheck{server: server, domains: domains, log: log, sampled: logs.NewThrottle(shardsWarnEvery)}
}

// check is the readiness check. It fails when no shard of a domain is a stream, because then none of
// its events is handled. An unavailable server is left to the check of plugins.redis. The detail
// "shards" has what is wrong with single streams, which do not stop their domain.
func (s *shardCheck) check(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.After(s.next) {
		s.next, s.wrong = now.Add(shardsEvery), map[string]string{}
		s.last = s.look(ctx)
	}
	telemetry.Detail(ctx, "shards", s.wrong)
	return s.last
}

func (s *shardCheck) look(ctx context.Context) error {
	var problems []string
domains:
	for _, d := range s.domains {
		calls := make([]*redis.Call, 2*d.Shards)
		for i := range calls {
			calls[i] = redis.Measure(d.Stream(i))
		}
		_ = s.server.Do(ctx, calls...) // each call has its error
		foreign := 0
		for i, call := range calls {
			measured, err := redis.MeasuredBy(call)
			problem := measured.Problem()
			switch {
			case err != nil && !errors.Is(err, redis.ErrNoStream):
				continue domains // the check of plugins.redis reports it
			case err != nil && i < d.Shards:
				foreign++
				s.wrong[d.Stream(i)] = "the key is no stream"
			case i < d.Shards && problem != "":
				s.wrong[d.Stream(i)] = problem + " (last id " + measured.LastID + ")"
			case i < d.Shards && measured.Entries >= int64(d.EntryLimit()):
				s.wrong[d.Stream(i)] = fmt.Sprintf("it is full: %d entries, and max_len is %d", measured.Entries, d.EntryLimit())
			case i >= d.Shards && measured.Entries > 0:
				s.wrong[d.Stream(i)] = "no router reads it"
				s.sampled.Warn(s.log, "no router reads a stream of events, because its producer has another number of shards: set the same number in both",
					slog.String(logs.Stream, d.Stream(i)), slog.Int("shards", d.Shards))
			}
		}
		if foreign == d.Shards {
			problems = append(problems, fmt.Sprintf("no shard of %s can be read: its keys are no streams: delete or rename them", d.Prefix))
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s", strings.Join(problems, "; "))
	}
	return nil
}
