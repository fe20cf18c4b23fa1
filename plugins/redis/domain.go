package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// DomainConfig is a stream that is divided into shards, <prefix>:0 to <prefix>:<shards-1>, which
// one group reads.
type DomainConfig struct {
	Prefix        string `yaml:"prefix"`         // of the streams' names, as scan:events
	Shards        int    `yaml:"shards"`         // the same in each instance and producer
	Group         string `yaml:"group"`          // consumer group of all shards
	MaxDeliveries int    `yaml:"max_deliveries"` // when a route's policy has none; 0: no limit
	// Fields: entries without the field "message" are flat fields, and become messages with a JSON
	// object (entry.DecodeFields).
	Fields bool `yaml:"fields"`
	// Exclusive: one instance at a time reads a shard, by a lease of 5 s, and the instances share
	// the shards evenly. Many entries are in flight, and their first deliveries keep the order of
	// the stream. Batches keep it with pipeline.Batch.PerSource.
	Exclusive bool `yaml:"exclusive"`

	// Concurrency, BatchSize and PollInterval are those of the domain's readers. Zero: the setting
	// of plugins.redis.
	Concurrency  int           `yaml:"concurrency"`
	BatchSize    int           `yaml:"batch_size"`
	PollInterval time.Duration `yaml:"poll_interval"`

	// Keep is how long acknowledged entries stay, by their ids and the clock of the server. An entry
	// whose id is ahead of that clock stays for one to two times Keep after its acknowledgement.
	Keep time.Duration `yaml:"keep"`
	// MaxLen is the number of entries of a shard at which producers are refused. Zero: 100000.
	MaxLen int `yaml:"max_len"`
}

// reader returns the settings of the domain's readers.
func (c DomainConfig) reader(shared poll.Config) poll.Config {
	shared.Concurrency = cmp.Or(c.Concurrency, shared.Concurrency)
	shared.BatchSize = cmp.Or(c.BatchSize, shared.BatchSize)
	shared.PollInterval = cmp.Or(c.PollInterval, shared.PollInterval)
	return shared
}

// Stream returns the name of a shard's stream.
func (c DomainConfig) Stream(shard int) string { return c.Prefix + ":" + strconv.Itoa(shard) }

// isShard reports whether stream is a shard of the domain with that prefix.
func isShard(prefix, stream string) bool {
	shard, ok := strings.CutPrefix(stream, prefix+":")
	return ok && shard != "" && strings.Trim(shard, "0123456789") == ""
}

// domainOf returns the domain that has the stream as a shard.
func domainOf(domains []DomainConfig, stream string) (DomainConfig, bool) {
	i := slices.IndexFunc(domains, func(d DomainConfig) bool { return isShard(d.Prefix, stream) })
	if i < 0 {
		return DomainConfig{}, false
	}
	return domains[i], true
}

// maxShards prevents that a typing error starts a hundred thousand readers.
const maxShards = 1024

func validateDomains(domains []DomainConfig) error {
	var p setting.Problems
	seen := map[string]bool{}
	for i, d := range domains {
		at := func(key string) string { return fmt.Sprintf("domains[%d].%s", i, key) }
		p.Check(d.Prefix != "", at("prefix"), "must not be empty")
		p.Check(!strings.ContainsAny(d.Prefix, "{}") || hashTag(d.Prefix) != "", at("prefix"),
			"its braces must enclose a hash tag, as in {scan}:events, got %q", d.Prefix)
		p.Check(!seen[d.Prefix], at("prefix"), "%q is in the list already", d.Prefix)
		p.Check(d.Shards >= 1 && d.Shards <= maxShards, at("shards"), "must be 1..%d, got %d", maxShards, d.Shards)
		p.Check(d.Group != "", at("group"), "must not be empty")
		p.Check(d.MaxDeliveries >= 0, at("max_deliveries"), "must be >= 0, got %d", d.MaxDeliveries)
		p.Check(d.Concurrency >= 0, at("concurrency"), "must be >= 0, got %d", d.Concurrency)
		p.Check(d.BatchSize >= 0, at("batch_size"), "must be >= 0, got %d", d.BatchSize)
		p.Check(d.MaxLen >= 0, at("max_len"), "must be >= 0, got %d", d.MaxLen)
		p.Check(d.PollInterval >= 0, at("poll_interval"), "must be >= 0, got %s", d.PollInterval)
		p.Check(d.Keep >= 0, at("keep"), "must be >= 0, got %s", d.Keep)
		seen[d.Prefix] = true
	}
	return p.Err()
}

// hashTag returns the part of a key that decides about its slot in a cluster, or "" for the
// complete key.
func hashTag(key string) string {
	_, after, _ := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(after, "}")
	if !closed {
		return ""
	}
	return tag
}

// Domain is one entry of the setting plugins.redis.domains: the input of its routes, and of
// plugins/reclaim. Safe for concurrent use.
type Domain struct {
	p      *Plugin
	prefix string

	mu     sync.Mutex
	opened *openDomain
}

type openDomain struct {
	sub interface {
		pipeline.Subscription
		IsClosed() bool
		Readers() []*poll.Reader // by shard; nil: not read here
	}
	gate func() bool
}

// Domain returns the domain with this prefix, always the same one. Its Source reports an error when
// the settings do not have it.
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

// TakeDomains returns all domains of the settings. The caller reclaims the entries of other
// instances, and the readers do not. It must be called before routes are opened.
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

// EntryLimit is MaxLen, or the default in place of zero.
func (c DomainConfig) EntryLimit() int { return cmp.Or(c.MaxLen, 100_000) }

// Config returns the settings of the domain, with the value that applies instead of each zero.
func (d *Domain) Config() (DomainConfig, error) {
	for _, c := range d.p.cfg.Domains {
		if c.Prefix == d.prefix {
			r := c.reader(d.p.cfg.Config)
			c.Concurrency, c.BatchSize, c.PollInterval = r.Concurrency, r.BatchSize, r.PollInterval
			c.MaxLen = c.EntryLimit()
			return c, nil
		}
	}
	return DomainConfig{}, fmt.Errorf("plugins.redis.domains: no domain has the prefix %q", d.prefix)
}

// Name labels metrics and logs: the text before the first colon of the prefix.
func (d *Domain) Name() string { return nameOf(d.prefix) }

func nameOf(prefix string) string {
	name, _, _ := strings.Cut(prefix, ":")
	return name
}

// Client is the plugin's shared client; nil before its service was started.
func (d *Domain) Client() goredis.UniversalClient { return d.p.Client() }

// MinIdle is the setting min_idle, within which readers renew their entries.
func (d *Domain) MinIdle() time.Duration { return d.p.cfg.MinIdle }

// Shard is one stream of a domain that is being read here.
type Shard struct {
	Index    int
	Stream   string
	Group    string
	Consumer string
	Reader   *poll.Reader
}

// Reading returns the shards that are being read here and may receive more. While the gate of the
// route is closed, there are none.
func (d *Domain) Reading() []Shard {
	d.mu.Lock()
	o := d.opened
	d.mu.Unlock()
	if o == nil || o.gate != nil && !o.gate() {
		return nil
	}
	readers := o.sub.Readers()
	shards := make([]Shard, 0, len(readers))
	for i, r := range readers {
		if r == nil {
			continue
		}
		select {
		case <-r.Stopping():
		default:
			stream, group, consumer := r.Names()
			shards = append(shards, Shard{Index: i, Stream: stream, Group: group, Consumer: consumer, Reader: r})
		}
	}
	return shards
}

// Source reads all shards of the domain for its group, with a reader per shard, as one source. The
// stream is in the message's Origin. Missing streams and groups are created. Window applies to each
// shard, and the shards divide MaxInFlight. Any order means one message per shard at a time. One
// route per process reads a domain.
func (d *Domain) Source() pipeline.Source { return domainSource{d} }

type domainSource struct{ d *Domain }

// Describe returns prefix and shards, and the group. A domain that the settings do not have is
// described as such.
func (s domainSource) Describe() pipeline.Endpoint {
	c, err := s.d.Config()
	if err != nil {
		return pipeline.Endpoint{Kind: poll.Kind, Name: s.d.prefix + ":<not in plugins.redis.domains>"}
	}
	return pipeline.Endpoint{Kind: poll.Kind, Name: fmt.Sprintf("%s:<0…%d>", c.Prefix, c.Shards-1), Group: c.Group}
}

// MaxDeliveries implements pipeline.Limiter with the domain's setting.
func (s domainSource) MaxDeliveries() int {
	c, err := s.d.Config()
	if err != nil {
		return 0 // Open returns the error
	}
	return c.MaxDeliveries
}

// Open starts a reader per shard. A shard that can not be read is logged and tried again. It delays
// no other.
func (s domainSource) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	c, err := s.d.Config()
	if err != nil {
		return nil, err
	}
	streams, err := shareOut(c, f, s.d.p.cfg.Config)
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
	for i := range streams {
		streams[i].ReclaimInterval = reclaim
	}
	o := &openDomain{gate: f.Gate}
	if c.Exclusive {
		o.sub, err = s.d.p.openExclusive(s.d, s.Describe(), f, streams)
	} else {
		o.sub, err = s.d.p.open(ctx, s.Describe(), f, streams...)
	}
	if err != nil {
		return nil, err
	}
	s.d.opened = o
	return o.sub, nil
}

var errTooFewInFlight = errors.New("redis: the route's MaxInFlight must be at least the number of shards")

// shareOut returns the readers of the shards. Each has the concurrency of a stream of its own, and
// all of them together at most MaxInFlight.
func shareOut(c DomainConfig, f pipeline.Flow, shared poll.Config) ([]poll.Options, error) {
	most := f.MaxInFlight
	if most > 0 && most < c.Shards {
		return nil, fmt.Errorf("%w: %d shards of %s, MaxInFlight %d", errTooFewInFlight, c.Shards, c.Prefix, most)
	}
	readers := make([]poll.Options, c.Shards)
	for i := range readers {
		if most > 0 {
			f.MaxInFlight = most / c.Shards
			if i < most%c.Shards {
				f.MaxInFlight++
			}
		}
		readers[i] = poll.Options{Config: c.reader(shared), Stream: c.Stream(i), Fields: c.Fields}
		readers[i].Concurrency = concurrencyOf(f, readers[i].Concurrency)
	}
	return readers, nil
}

var _ pipeline.Limiter = domainSource{}
