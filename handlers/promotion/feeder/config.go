package feeder

import (
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the settings section of the feeder (plugins.promotion.feeder).
type Config struct {
	// Interval is the pause between two rounds over the promotions that may have something to do.
	Interval time.Duration `yaml:"interval"`
	// GracePeriod is how long after its due time a payout is enqueued again.
	GracePeriod time.Duration `yaml:"grace_period"`
	// SweepInterval is the pause between two scans for streams that are not on the active set.
	SweepInterval time.Duration `yaml:"sweep_interval"`
	// BatchSize is the maximum number of payouts that are enqueued at once.
	BatchSize int `yaml:"batch_size"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Interval: time.Second, GracePeriod: 30 * time.Second, SweepInterval: time.Minute, BatchSize: 1000}
}

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	p.Positive("interval", c.Interval)
	p.Positive("grace_period", c.GracePeriod)
	p.Positive("sweep_interval", c.SweepInterval)
	p.Check(c.BatchSize >= 1 && c.BatchSize <= 10_000, "batch_size", "must be from 1 to 10000, got %d", c.BatchSize)
	return p.Err()
}
