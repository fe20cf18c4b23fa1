package deadletter

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
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
}

// StoreConfig is the section plugins.deadletter.store.
type StoreConfig struct {
	// DSN is postgres://… or sqlite:/path, the database of the tables dead_letter…: that of the
	// ledger, or another one. Empty: dead letters only go to their topics.
	DSN pipeline.Secret `yaml:"dsn"`
}

// DefaultConfig returns the settings of the README.
func DefaultConfig() Config {
	return Config{Interval: 500 * time.Millisecond, BatchSize: 100, PublishTimeout: 10 * time.Second, MaxBackoff: 30 * time.Second}
}

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	if dsn := c.Store.DSN.Reveal(); dsn != "" && sqldb.DialectOf(dsn) == "" {
		bad("store.dsn", "must begin with postgres://, postgresql:// or sqlite:")
	} else if err := sqldb.CheckEncryption(dsn); err != nil {
		bad("store.dsn", "%s", err)
	}
	if c.Interval <= 0 {
		bad("interval", "must be > 0, got %s", c.Interval)
	}
	if c.BatchSize < 1 || c.BatchSize > 10000 {
		bad("batch_size", "must be from 1 to 10000, got %d", c.BatchSize)
	}
	if c.PublishTimeout <= 0 {
		bad("publish_timeout", "must be > 0, got %s", c.PublishTimeout)
	}
	if c.MaxBackoff < c.Interval {
		bad("max_backoff", "must be at least interval (%s), got %s", c.Interval, c.MaxBackoff)
	}
	return errors.Join(errs...)
}
