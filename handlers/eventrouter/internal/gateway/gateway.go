package gateway

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Config has the settings of a gateway.
type Config struct {
	// GapWait is the longest wait for a missing number. Zero reports a missing number at once, for
	// producers whose numbers have holes.
	GapWait time.Duration `yaml:"gap_wait"`
	// FeedPoll is the time between two reads of the feeds while events arrive. It grows to five
	// times as much while none do.
	FeedPoll time.Duration `yaml:"feed_poll"`
	// MaxWatch is the longest time that a stream stays open. The client then reconnects.
	MaxWatch time.Duration `yaml:"max_watch"`
	// LoopbackWithoutToken permits streams without a token while plugins.web listens on a loopback
	// address, to clients of this machine that no proxy has forwarded.
	LoopbackWithoutToken bool `yaml:"loopback_without_token"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{GapWait: 30 * time.Second, FeedPoll: 20 * time.Millisecond, MaxWatch: time.Hour}
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.GapWait >= 0, "gap_wait", "must be >= 0, got %s", c.GapWait)
	p.Check(c.FeedPoll >= time.Millisecond, "feed_poll", "must be >= 1ms, got %s", c.FeedPoll)
	p.Positive("max_watch", c.MaxWatch)
	return p.Err()
}

// idleFactor is how much longer the gateway waits between reads of feeds without new events.
const idleFactor = 5

// warnEvery limits the log lines about events that can't be read.
const warnEvery = 10 * time.Second

// Options are the parts of a Gateway. All are required.
type Options struct {
	Config
	Stages event.Stages
	Shards map[string]int // of each domain
	Server *redis.Server  // has the logs and the feeds
	Log    *joblog.Log    // on Server
	Hub    *sse.Hub
	Tokens *token.Plugin
	Web    *web.Plugin
	Logger *slog.Logger
}

// Gateway sends the events of jobs to their watchers. It is a pipeline.Service, after that of the
// server. Use New.
type Gateway struct {
	opts     Options
	seed     maphash.Seed // of the hashes of contents
	metrics  metrics
	sampled  *logs.Throttle
	domains  []*domain // by name
	follower *redis.Follower
	reader   *reader
	loops    loop.Group
}

// New returns a gateway.
func New(o Options) *Gateway {
	g := &Gateway{opts: o, seed: maphash.MakeSeed(), sampled: logs.NewThrottle(warnEvery)}
	feeds := map[string]*domain{} // by stream
	for name, shards := range o.Shards {
		d := &domain{g: g, name: name, prefix: `{"domain":"` + name + `","job_id":"`, wait: roomWait, jobs: map[string]*job{}}
		g.domains = append(g.domains, d)
		for shard := range shards {
			feeds[joblog.FeedKey(name, shard)] = d
		}
	}
	sorted.By(g.domains, func(a, b *domain) int { return cmp.Compare(a.name, b.name) })
	g.metrics = newMetrics(g.domains)
	g.reader = newReader(g)
	streams := make([]string, 0, len(feeds))
	for stream := range feeds {
		streams = append(streams, stream)
	}
	slices.Sort(streams)
	g.follower = o.Server.Follow(redis.FollowOptions{
		Streams: streams, Interval: o.FeedPoll, MaxInterval: idleFactor * o.FeedPoll, Log: o.Logger,
		Entries: func(stream string, entries []redis.FollowedEntry) {
			texts := make([]string, 0, len(entries))
			for _, e := range entries {
				if id := e.Fields[joblog.ResetField]; id != "" {
					feeds[stream].entries(texts)
					feeds[stream].reset(id)
					texts = texts[:0]
					continue
				}
				texts = append(texts, e.Fields[joblog.FeedField])
			}
			feeds[stream].entries(texts)
		},
		Lost: func(stream string, _ error) { feeds[stream].lost() },
	})
	return g
}

// Register adds the HTTP handlers and the collectors. The service is registered by the caller.
func (g *Gateway) Register(r *pipeline.Registry) {
	r.Collect(g.metrics.collectors()...)
	g.opts.Web.Handle("GET /jobs/{domain}/{job}/events", g.events(), web.AllowOrigins(), web.Stream(), web.Subjects(g.subject))
	g.opts.Web.Handle("GET /jobs/{domain}/{job}", g.state(), web.AllowOrigins())
}

// Start notes the positions of the feeds, so that a log that is read later lacks nothing that the
// feeds do not bring.
func (g *Gateway) Start(ctx context.Context) error {
	if err := g.follower.Start(ctx); err != nil {
		return err
	}
	return g.loops.Start(ctx, g.reader.run)
}

// Stop ends the reads. The streams were closed before.
func (g *Gateway) Stop(ctx context.Context) error {
	return errors.Join(g.follower.Stop(ctx), g.loops.Stop(ctx))
}

// domain returns a domain by its name, or nil.
func (g *Gateway) domain(name string) *domain {
	for _, d := range g.domains {
		if d.name == name {
			return d
		}
	}
	return nil
}
