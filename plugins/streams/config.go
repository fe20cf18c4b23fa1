package streams

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is what a person sets about elastic streams of one kind. Start from DefaultConfig: the
// zero value is refused by Validate.
type Config struct {
	Common `yaml:",inline"`
	// MinConsumers and MaxConsumers bound the concurrency of a stream in this instance.
	MinConsumers int `yaml:"min_consumers_per_instance"`
	MaxConsumers int `yaml:"max_consumers_per_instance"`
	// Tiers is the concurrency of a stream for its total count, in ascending order of UpTo.
	Tiers []Tier `yaml:"tiers"`
}

// Common is Config without the concurrency of a stream, for an owner that bounds its work itself. Start
// from DefaultCommon.
type Common struct {
	// MaxLen bounds a stream: acknowledged entries are trimmed at it, and when that is not enough
	// an enqueue is answered Full. Nothing unread or pending is ever removed. Entries.
	MaxLen int64 `yaml:"max_len"`
	// PollInterval is the longest pause between two reads of an empty stream. The pause starts at
	// InitialPollInterval, doubles, and falls back at the first entry.
	PollInterval time.Duration `yaml:"poll_interval"`
	// InitialPollInterval is the first pause after a read that found nothing.
	InitialPollInterval time.Duration `yaml:"initial_poll_interval"`
	// IdleTimeout is how long a stream must have been drained, over all instances, before it is
	// stopped and deleted.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// BatchSize is the smallest COUNT of XREADGROUP. It doubles while entries are handled quickly.
	BatchSize int `yaml:"batch_size"`
	// StopTimeout bounds the stop of one stream while the instance goes on. A drain of all takes as long as the process may.
	StopTimeout time.Duration `yaml:"stop_timeout"`
	// MinIdle is how long an entry must not have been renewed before another instance may claim it.
	// A running reader renews its entries every third of it.
	MinIdle time.Duration `yaml:"min_idle"`
	// LongestHold is how long a reader renews an entry. Zero: for as long as its handler runs.
	LongestHold time.Duration `yaml:"longest_hold"`
	// ForeignGroupGrace is how long a foreign consumer group may delay the trimming and the
	// deletion of entries that the own group has acknowledged. A group is foreign when it is
	// neither the stream's own nor required. After that it is ignored until it has caught up. Zero:
	// it is ignored at once.
	ForeignGroupGrace time.Duration `yaml:"foreign_group_grace"`
	// RequiredGroups are consumer groups that delay trimming and deletion without a limit, as the
	// own group does.
	RequiredGroups []string `yaml:"required_groups"`
	// ReconcileInterval is the interval of the control loop over the active set and the streams.
	ReconcileInterval time.Duration `yaml:"reconcile_interval"`
}

// Tier is the concurrency, per instance, of a stream with at most UpTo targets. An UpTo of zero has
// no bound; only the last tier may have it.
type Tier struct {
	UpTo      int64 `yaml:"up_to"`
	Consumers int   `yaml:"consumers"`
}

// DefaultConfig returns the defaults, as a new value.
func DefaultConfig() Config {
	return Config{Common: DefaultCommon(), MinConsumers: 1, MaxConsumers: 32, Tiers: DefaultTiers()}
}

// DefaultCommon returns the defaults, as a new value.
func DefaultCommon() Common {
	return Common{
		MaxLen:              100_000,
		PollInterval:        100 * time.Millisecond,
		InitialPollInterval: 5 * time.Millisecond,
		IdleTimeout:         30 * time.Second,
		BatchSize:           10,
		StopTimeout:         5 * time.Second,
		MinIdle:             5 * time.Minute,
		LongestHold:         30 * time.Minute,

		ForeignGroupGrace: 5 * time.Minute,

		ReconcileInterval: 2 * time.Second,
	}
}

// DefaultTiers returns the default sizing table, as a new value.
func DefaultTiers() []Tier {
	return []Tier{{100, 1}, {1_000, 2}, {10_000, 4}, {100_000, 8}, {500_000, 16}, {0, 32}}
}

// Validate reports every mistake at once, as joined setting.FieldError values whose paths are
// relative to the settings of the stream.
func (c Config) Validate() error {
	p := setting.Problems{c.Common.Validate()}
	p.Check(c.MinConsumers > 0, "min_consumers_per_instance", "must be > 0, got %d", c.MinConsumers)
	p.Check(c.MinConsumers <= c.MaxConsumers, "min_consumers_per_instance", "must be <= max_consumers_per_instance (%d), got %d", c.MaxConsumers, c.MinConsumers)
	p.Check(len(c.Tiers) > 0, "tiers", "must have at least one tier")
	for i, t := range c.Tiers {
		path := fmt.Sprintf("tiers[%d]", i)
		p.Check(t.Consumers > 0, path+".consumers", "must be > 0, got %d", t.Consumers)
		p.Check(t.UpTo >= 0, path+".up_to", "must be >= 0, got %d", t.UpTo)
		p.Check(t.UpTo != 0 || i == len(c.Tiers)-1, path+".up_to", "only the last tier may be without a bound")
		if i > 0 && t.UpTo > 0 {
			p.Check(t.UpTo > c.Tiers[i-1].UpTo, path+".up_to", "must be > %d, got %d", c.Tiers[i-1].UpTo, t.UpTo)
		}
	}
	return p.Err()
}

// Validate is that of Config.
func (c Common) Validate() error {
	var p setting.Problems
	p.Check(c.MaxLen > 0, "max_len", "must be > 0, got %d", c.MaxLen)
	p.Positive("poll_interval", c.PollInterval)
	p.Positive("initial_poll_interval", c.InitialPollInterval)
	p.Check(c.InitialPollInterval <= c.PollInterval, "initial_poll_interval", "must be <= poll_interval (%s), got %s", c.PollInterval, c.InitialPollInterval)
	p.Positive("idle_timeout", c.IdleTimeout)
	p.Check(c.BatchSize > 0, "batch_size", "must be > 0, got %d", c.BatchSize)
	p.Positive("stop_timeout", c.StopTimeout)
	p.Positive("min_idle", c.MinIdle)
	p.Check(c.LongestHold >= 0, "longest_hold", "must be >= 0, got %s", c.LongestHold)
	p.Positive("reconcile_interval", c.ReconcileInterval)
	p.Check(c.IdleTimeout <= 0 || c.ReconcileInterval <= c.IdleTimeout, "reconcile_interval", "must be <= idle_timeout (%s), got %s", c.IdleTimeout, c.ReconcileInterval)
	p.Check(c.ForeignGroupGrace >= 0, "foreign_group_grace", "must be >= 0, got %s", c.ForeignGroupGrace)
	p.Groups("required_groups", c.RequiredGroups)
	return p.Err()
}

// Consumers returns the concurrency of a stream in one instance: that of the first tier that
// reaches total, clamped to [lowest, highest]. Without such a tier the last one counts. An unknown
// total (0) gets least.
func Consumers(tiers []Tier, total int64, lowest, highest int) int {
	n := lowest
	if total > 0 {
		for _, t := range tiers {
			n = t.Consumers
			if t.UpTo == 0 || total <= t.UpTo {
				break
			}
		}
	}
	return min(max(n, lowest), highest)
}
