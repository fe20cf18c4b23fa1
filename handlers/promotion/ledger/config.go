package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Config has the settings of a ledger. Start from DefaultConfig: Validate refuses the zero value.
type Config struct {
	// DSN is postgres://user:password@host:port/database?options or sqlite:/path/to/file.
	// PostgreSQL options are those of pgx; search_path names a schema. SQLite accepts
	// ?synchronous=full, which also survives a power failure; the default survives only the end of
	// the process.
	DSN setting.Secret `yaml:"dsn"`
	// Connections is the number of PostgreSQL connections for payouts. Four more serve the feeder,
	// commands and status. SQLite has one writer. Default 10.
	Connections int `yaml:"connections"`
	// MaxRetries is the number of sends after the first one. Default 5.
	MaxRetries int `yaml:"max_retries"`
	// MaxReleased is the number of released calls per payout while calls for other payouts are
	// answered. Then the payout is FAILED if it was certainly not charged, and looked up otherwise.
	// The same number of lookups may be released. Lookups that are refused after the time of the key
	// count, whether calls for others are answered or not. Default 20.
	MaxReleased int `yaml:"max_released"`
	// IdempotencyTTL is the time after the first use of a key during which a request may be sent.
	// Later it is looked up first, and not sent if it may have been charged. The Money API must
	// keep its keys for longer than this plus a lease. Default 24h.
	IdempotencyTTL time.Duration `yaml:"idempotency_ttl"`
	// Retry is the delay after a failed call. Default 1s, doubled, at most 30s.
	Retry pipeline.Backoff `yaml:"retry"`
	// BatchSize is the maximum number of payouts per transaction. Default 256.
	BatchSize int `yaml:"batch_size"`
	// Linger is the time that a batch of begins or settles waits for the end of the running flush.
	// Then it is flushed at the same time. Under load, batches that are not full begin 5ms apart,
	// or Linger if that is shorter. Default 10ms.
	Linger time.Duration `yaml:"linger"`
}

// DefaultConfig returns the defaults; only the DSN is missing.
func DefaultConfig() Config {
	return Config{
		Connections:    10,
		MaxRetries:     5,
		MaxReleased:    20,
		IdempotencyTTL: 24 * time.Hour,
		Retry:          pipeline.Backoff{First: time.Second, Max: 30 * time.Second},
		BatchSize:      256,
		Linger:         10 * time.Millisecond,
	}
}

// Validate reports all wrong settings at once, as joined *setting.FieldError values.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(!c.DSN.IsZero(), "dsn", "must be set: postgres://… or sqlite:/path")
	sqldb.CheckDSN(&p, "dsn", c.DSN)
	p.Check(c.Connections >= 4, "connections", "must be >= 4, got %d", c.Connections)
	p.Check(c.MaxRetries >= 0, "max_retries", "must be >= 0, got %d", c.MaxRetries)
	p.Check(c.MaxReleased >= 1, "max_released", "must be >= 1, got %d", c.MaxReleased)
	p.Positive("idempotency_ttl", c.IdempotencyTTL)
	p.Check(c.Retry.First >= 0 && c.Retry.Max >= 0, "retry", "first and max must be >= 0, got %s and %s", c.Retry.First, c.Retry.Max)
	p.Check(c.BatchSize >= 1 && c.BatchSize <= 2000, "batch_size", "must be from 1 to 2000, got %d", c.BatchSize)
	p.Check(c.Linger >= 0 && c.Linger <= time.Second, "linger", "must be from 0 to 1s, got %s", c.Linger)
	return p.Err()
}

// Options is set by the program, not by the settings.
type Options struct {
	// Instance names this instance in attempts and feeder leases. Required.
	Instance string
	// Lease is the time limit of a call plus a margin. Required.
	Lease time.Duration
	// OutcomeEvents: every settled payout gets an outcome event in the outbox.
	OutcomeEvents bool
	// MaxActive is the maximum number of active promotions; see Admit. Zero: no limit.
	MaxActive int
	// AcceptUnannounced: a begin without a row accepts the payout, instead of writing a dead letter
	// of class unannounced.
	AcceptUnannounced bool
	// Metrics show this ledger from Open to Close. Nil: they are not collected.
	Metrics *Metrics
	// SameRequest reports whether two requests of one key request the same payout. The stored one
	// is sent. Nil: bytes.Equal.
	SameRequest func(t payouts.Type, stored, offered []byte) bool

	flushTimeout time.Duration // of one transaction of a batch; zero: the constant
}

func (o *Options) check() error {
	if o.Instance == "" {
		return errors.New("ledger: the instance has no name")
	}
	o.Instance = clean(o.Instance)
	if o.Lease <= 0 {
		return fmt.Errorf("ledger: the lease must be > 0, got %s", o.Lease)
	}
	if o.MaxActive == 0 {
		o.MaxActive = math.MaxInt32
	}
	if o.SameRequest == nil {
		o.SameRequest = func(_ payouts.Type, stored, offered []byte) bool { return bytes.Equal(stored, offered) }
	}
	return nil
}

func (c Config) policy(o Options) rules.Policy {
	return rules.Policy{
		Repeat:      rules.ByKey,
		MaxAttempts: 1 + c.MaxRetries,
		MaxLookups:  1 + c.MaxRetries,
		MaxReleased: c.MaxReleased,
		Lease:       o.Lease,
		KeyTTL:      c.IdempotencyTTL,
		Delay:       c.Retry.Delay,
		Instance:    o.Instance,
	}
}
