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
	// Store is the working copy of dead letters.
	Store StoreConfig `yaml:"store"`
	// Interval is the wait between two looks into an empty outbox. One that has letters is emptied back to back.
	Interval time.Duration `yaml:"interval"`
	// BatchSize is how many letters are taken in one transaction.
	BatchSize int `yaml:"batch_size"`
	// PublishTimeout bounds publishing one batch.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxBackoff is the longest wait after failures; it begins with Interval and doubles.
	MaxBackoff time.Duration `yaml:"max_backoff"`
}

// StoreConfig is the section plugins.deadletter.store.
type StoreConfig struct {
	// DSN is postgres://… or sqlite:/path, where the tables dead_letter… are kept: the ledger's own database, or
	// another one. Empty: there is no working copy, letters only go to their topics.
	DSN pipeline.Secret `yaml:"dsn"`
}

// DefaultConfig returns the settings of the README.
func DefaultConfig() Config {
	return Config{Interval: 500 * time.Millisecond, BatchSize: 100, PublishTimeout: 10 * time.Second, MaxBackoff: 30 * time.Second}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	var errs []error
	wrong := func(path, format string, args ...any) {
		errs = append(errs, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	if dsn := c.Store.DSN.Reveal(); dsn != "" && sqldb.DialectOf(dsn) == "" {
		wrong("store.dsn", "must begin with postgres://, postgresql:// or sqlite:")
	} else if err := sqldb.CheckEncryption(dsn); err != nil {
		wrong("store.dsn", "%s", err)
	}
	if c.Interval <= 0 {
		wrong("interval", "must be > 0, got %s", c.Interval)
	}
	if c.BatchSize < 1 || c.BatchSize > 10000 {
		wrong("batch_size", "must be from 1 to 10000, got %d", c.BatchSize)
	}
	if c.PublishTimeout <= 0 {
		wrong("publish_timeout", "must be > 0, got %s", c.PublishTimeout)
	}
	if c.MaxBackoff < c.Interval {
		wrong("max_backoff", "must be at least interval (%s), got %s", c.Interval, c.MaxBackoff)
	}
	return errors.Join(errs...)
}
