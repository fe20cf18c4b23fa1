package deadletter

import (
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Config is the section plugins.deadletter.
type Config struct {
	// Store is the table of dead letters.
	Store StoreConfig `yaml:"store"`
	// Interval is the time between two reads of an empty outbox. A relay reads one with entries
	// without a pause.
	Interval time.Duration `yaml:"interval"`
	// BatchSize is the number of dead letters that a relay takes in one transaction.
	BatchSize int `yaml:"batch_size"`
	// PublishTimeout bounds publishing one batch.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxBackoff is the longest delay after failures. The delay begins with Interval and doubles.
	MaxBackoff time.Duration `yaml:"max_backoff"`

	drivers portable.Databases // nil: the binary has none
}

// StoreConfig is the section plugins.deadletter.store.
type StoreConfig struct {
	// DSN is postgres://… or sqlite:/path, the database of the tables dead_letter…: that of the
	// ledger, or another one. Empty: dead letters only go to their topics and streams.
	DSN setting.Secret `yaml:"dsn"`
}

// defaultConfig returns the settings of the README.
func defaultConfig() Config {
	return Config{Interval: 500 * time.Millisecond, BatchSize: 100, PublishTimeout: 10 * time.Second, MaxBackoff: 30 * time.Second}
}

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	if c.drivers != nil {
		c.drivers.CheckDSN(&p, "store.dsn", c.Store.DSN)
	} else {
		p.Check(c.Store.DSN.IsZero(), "store.dsn", "must be empty, because %s", noDrivers)
	}
	p.Positive("interval", c.Interval)
	p.Check(c.BatchSize >= 1 && c.BatchSize <= 10000, "batch_size", "must be from 1 to 10000, got %d", c.BatchSize)
	p.Positive("publish_timeout", c.PublishTimeout)
	p.Check(c.MaxBackoff >= c.Interval, "max_backoff", "must be at least interval (%s), got %s", c.Interval, c.MaxBackoff)
	return p.Err()
}
