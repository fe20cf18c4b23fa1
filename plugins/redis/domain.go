package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// DomainConfig is a stream that is cut into shards, <prefix>:0 to <prefix>:<shards-1>, which one group reads.
type DomainConfig struct {
	Prefix        string `yaml:"prefix"`         // of the streams' names, as scan:events
	Shards        int    `yaml:"shards"`         // how many streams there are; the same in every instance and producer
	Group         string `yaml:"group"`          // consumer group of all shards
	MaxDeliveries int    `yaml:"max_deliveries"` // pipeline.Policy.MaxDeliveries of routes that don't say; 0: no limit
}

// Stream returns the name of a shard's stream.
func (c DomainConfig) Stream(shard int) string { return c.Prefix + ":" + strconv.Itoa(shard) }

// maxShards keeps a slip of the finger from starting a hundred thousand readers.
const maxShards = 1024

func validateDomains(domains []DomainConfig) error {
	var p problems
	seen := map[string]bool{}
	for i, d := range domains {
		at := func(key string) string { return fmt.Sprintf("domains[%d].%s", i, key) }
		p.check(d.Prefix != "", at("prefix"), "must not be empty")
		p.check(!strings.ContainsAny(d.Prefix, "{}") || hashTag(d.Prefix) != "", at("prefix"),
			"its braces must enclose a hash tag, as in {scan}:events, got %q", d.Prefix)
		p.check(!seen[d.Prefix], at("prefix"), "%q is in the list already", d.Prefix)
		p.check(d.Shards >= 1 && d.Shards <= maxShards, at("shards"), "must be 1..%d, got %d", maxShards, d.Shards)
		p.check(d.Group != "", at("group"), "must not be empty")
		p.check(d.MaxDeliveries >= 0, at("max_deliveries"), "must be >= 0, got %d", d.MaxDeliveries)
		seen[d.Prefix] = true
	}
	return p.err()
}

// hashTag returns the part of a key that decides about its slot in a cluster; empty: the complete key does.
func hashTag(key string) string {
	_, after, _ := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !closed {
		return ""
	}
	return tag
}

// Domain is one entry of the setting plugins.redis.domains: what its routes read, and what plugins/reclaim goes
// through, which finds it by itself. Safe for concurrent use.
type Domain struct {
	p      *Plugin
	prefix string

	mu     sync.Mutex
	opened *openDomain
}

// openDomain is what is being read of a domain here.
type openDomain struct {
	sub  *pubsub.Subscription
	gate func() bool
}

// Domain returns the domain with this prefix, always the same one. Whether the settings have it is seen when its
// Source is opened.
func (p *Plugin) Domain(prefix string) *Domain {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.domains[prefix]
	if d == nil {
		d = &Domain{p: p, prefix: prefix}
		p.domains[prefix] = d
	}
	return d
}

// TakeDomains returns all domains of the settings and leaves to the caller what other instances have left behind in them:
// their readers don't look for idle entries of others by themselves then. It must be called before routes are opened.
func (p *Plugin) TakeDomains() []*Domain {
	all := make([]*Domain, len(p.cfg.Domains))
	for i, c := range p.cfg.Domains {
		all[i] = p.Domain(c.Prefix)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = true
	return all
}

// config returns the domain's settings.
func (d *Domain) config() (DomainConfig, error) {
	for _, c := range d.p.cfg.Domains {
		if c.Prefix == d.prefix {
			return c, nil
		}
	}
	return DomainConfig{}, fmt.Errorf("plugins.redis.domains: no domain has the prefix %q", d.prefix)
}

// Name labels metrics and logs: the text before the first colon of the prefix.
func (d *Domain) Name() string {
	name, _, _ := strings.Cut(d.prefix, ":")
	return name
}

// Client is the plugin's shared client; nil before its service was started.
func (d *Domain) Client() goredis.UniversalClient { return d.p.Client() }

// MinIdle is the setting min_idle, for which the readers' signs of life are made.
func (d *Domain) MinIdle() time.Duration { return d.p.cfg.MinIdle }

// Shard is one stream of a domain that is being read here.
type Shard struct {
	Index    int
	Stream   string
	Group    string
	Consumer string
	Reader   *poll.Reader
}

// Reading returns the shards that are being read here and may be given more; none while the route's gate is closed.
func (d *Domain) Reading() []Shard {
	d.mu.Lock()
	o := d.opened
	d.mu.Unlock()
	if o == nil || o.gate != nil && !o.gate() {
		return nil
	}
	shards := make([]Shard, 0, len(o.sub.Readers()))
	for i, r := range o.sub.Readers() {
		select {
		case <-r.Stopping():
		default:
			stream, group, consumer := r.Names()
			shards = append(shards, Shard{Index: i, Stream: stream, Group: group, Consumer: consumer, Reader: r})
		}
	}
	return shards
}

// Source reads all shards of the domain for its group, a reader each, as one source: the stream is in the message's
// Origin. Streams and groups are created when missing. A Window is of each shard, MaxInFlight is shared out among them;
// any order means one message of a shard at a time. A domain is read by one route of a process at a time.
func (d *Domain) Source() pipeline.Source { return domainSource{d} }

type domainSource struct{ d *Domain }

// Describe returns prefix and shards, and the group. Of a domain that the settings don't have it says so.
func (s domainSource) Describe() pipeline.Endpoint {
	c, err := s.d.config()
	if err != nil {
		return pipeline.Endpoint{Kind: poll.Kind, Name: s.d.prefix + ":<not in plugins.redis.domains>"}
	}
	return pipeline.Endpoint{Kind: poll.Kind, Name: fmt.Sprintf("%s:<0…%d>", c.Prefix, c.Shards-1), Group: c.Group}
}

// MaxDeliveries implements pipeline.Limiter with the domain's setting.
func (s domainSource) MaxDeliveries() int {
	c, err := s.d.config()
	if err != nil {
		return 0 // Open says so
	}
	return c.MaxDeliveries
}

// Open starts a reader a shard. A shard that can't be had is logged and tried again, and holds up no other.
func (s domainSource) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	c, err := s.d.config()
	if err != nil {
		return nil, err
	}
	streams, err := shareOut(c, f, s.d.p.cfg.Concurrency)
	if err != nil {
		return nil, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if o := s.d.opened; o != nil && !o.sub.IsClosed() {
		return nil, fmt.Errorf("redis: domain %s is being read here already", c.Prefix)
	}
	s.d.p.mu.Lock()
	reclaim := s.d.p.cfg.ReclaimInterval
	if s.d.p.taken {
		reclaim = 0
	}
	s.d.p.mu.Unlock()
	sub, err := s.d.p.open(ctx, s.Describe(), f, reclaim, streams...)
	if err != nil {
		return nil, err
	}
	s.d.opened = &openDomain{sub, f.Gate}
	return sub, nil
}

var errTooFewInFlight = errors.New("redis: the route's MaxInFlight must be at least the number of shards")

// shareOut returns the shards with the slots of each: as many as a stream of its own would have, and together no more
// than MaxInFlight.
func shareOut(c DomainConfig, f pipeline.Flow, concurrency int) ([]stream, error) {
	most := f.MaxInFlight
	if most > 0 && most < c.Shards {
		return nil, fmt.Errorf("%w: %d shards of %s, MaxInFlight %d", errTooFewInFlight, c.Shards, c.Prefix, most)
	}
	streams := make([]stream, c.Shards)
	for i := range streams {
		if most > 0 {
			f.MaxInFlight = most / c.Shards
			if i < most%c.Shards {
				f.MaxInFlight++
			}
		}
		streams[i] = stream{c.Stream(i), concurrencyOf(f, concurrency)}
	}
	return streams, nil
}

var (
	_ pipeline.Source  = domainSource{}
	_ pipeline.Limiter = domainSource{}
)
