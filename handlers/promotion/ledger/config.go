package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Config is what a person sets. Begin with DefaultConfig: the zero value is refused by Validate.
type Config struct {
	// DSN is postgres://user:password@host:port/database?options or sqlite:/path/to/file. Options of
	// PostgreSQL are those of pgx; search_path names a schema. sqlite accepts ?synchronous=full, which
	// survives a power failure too; without it the ledger survives every death of the process.
	DSN pipeline.Secret `yaml:"dsn"`
	// Connections is how many PostgreSQL connections serve payouts; four more serve the feeder, commands
	// and status. SQLite has one writer. Default 10.
	Connections int `yaml:"connections"`
	// MaxRetries is how many sends may follow the first one. Default 5.
	MaxRetries int `yaml:"max_retries"`
	// MaxReleased is how many calls of a payout may be released, that is spend no attempt because of what was answered, while
	// calls for other payouts are being answered. Then the payout is FAILED if it was certainly not charged, and is
	// looked up otherwise. Lookups may be released as often again. Default 20.
	MaxReleased int `yaml:"max_released"`
	// IdempotencyTTL is how long after the first use of its idempotency key a request may be sent. Later it is looked up first, and
	// not sent if it may have been charged. The Money API must honour its keys for longer than that plus a lease. Default 24h.
	IdempotencyTTL time.Duration `yaml:"idempotency_ttl"`
	// Retry is the delay after a failed call. Default 1s, doubled, at most 30s.
	Retry pipeline.Backoff `yaml:"retry"`
	// MaxBatch is how many payouts one transaction may carry. Default 256.
	MaxBatch int `yaml:"max_batch"`
	// Linger is how long a flush waits for the one under way, gathering company, before it runs beside it. Default 10ms.
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
		MaxBatch:       256,
		Linger:         10 * time.Millisecond,
	}
}

// Validate reports every wrong setting at once, as joined *pipeline.FieldError values.
func (c Config) Validate() error {
	var errs []error
	wrong := func(path, format string, args ...any) {
		errs = append(errs, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	if dsn := c.DSN.Reveal(); dsn == "" {
		wrong("dsn", "must be set: postgres://… or sqlite:/path")
	} else if sqldb.DialectOf(dsn) == "" {
		wrong("dsn", "must begin with postgres://, postgresql:// or sqlite:")
	} else if err := sqldb.CheckEncryption(dsn); err != nil {
		wrong("dsn", "%s", err)
	}
	if c.Connections < 4 {
		wrong("connections", "must be >= 4, got %d", c.Connections)
	}
	if c.MaxRetries < 0 {
		wrong("max_retries", "must be >= 0, got %d", c.MaxRetries)
	}
	if c.MaxReleased < 1 {
		wrong("max_released", "must be >= 1, got %d", c.MaxReleased)
	}
	if c.IdempotencyTTL <= 0 {
		wrong("idempotency_ttl", "must be > 0, got %s", c.IdempotencyTTL)
	}
	if c.Retry.First < 0 || c.Retry.Max < 0 {
		wrong("retry", "first and max must be >= 0, got %s and %s", c.Retry.First, c.Retry.Max)
	}
	if c.MaxBatch < 1 || c.MaxBatch > 2000 {
		wrong("max_batch", "must be from 1 to 2000, got %d", c.MaxBatch)
	}
	if c.Linger < 0 || c.Linger > time.Second {
		wrong("linger", "must be from 0 to 1s, got %s", c.Linger)
	}
	return errors.Join(errs...)
}

// Options is what the program, not a person, decides.
type Options struct {
	// Instance names this instance in attempts and feeder leases. Required.
	Instance string
	// Lease is how long a begun payout belongs to its worker: the limit of a call plus a margin. Required.
	Lease time.Duration
	// Results: every settled payout is offered as an outcome event in the outbox.
	Results bool
	// MaxActive is how many promotions may be active at once; Admit says which. Zero: no limit.
	MaxActive int
	// AcceptUnannounced: a begin without a row accepts the payout, instead of writing a dead letter of class unannounced.
	AcceptUnannounced bool
	// SameRequest reports whether two requests ask for the same payout, whose keys are the same. What is sent is always
	// the stored one. Nil: bytes.Equal.
	SameRequest func(t Type, stored, offered []byte) bool
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
		o.SameRequest = func(_ Type, stored, offered []byte) bool { return bytes.Equal(stored, offered) }
	}
	return nil
}

func (c Config) policy(o Options) policy {
	return policy{
		maxAttempts: 1 + c.MaxRetries,
		maxAsks:     1 + c.MaxRetries,
		maxReleased: c.MaxReleased,
		lease:       o.Lease,
		ttl:         c.IdempotencyTTL,
		delay:       c.Retry.Delay,
		instance:    o.Instance,
	}
}
