package ledger

import (
	"cmp"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Config has the settings of a ledger. Start from DefaultConfig: Validate refuses the zero value.
type Config struct {
	// DSN is postgres://user:password@host:port/database?options or sqlite:/path/to/file.
	// PostgreSQL options are those of pgx; search_path names a schema. SQLite accepts
	// ?synchronous=full, which also survives a power failure; the default survives only the end of
	// the process.
	DSN setting.Secret `yaml:"dsn"`
	// Connections is the number of PostgreSQL connections that accept, claim and settle effects. Four
	// more serve sweeps, commands and reports. SQLite has one writer. Default 10.
	Connections int `yaml:"connections"`
}

// DefaultConfig returns the defaults; only the DSN is missing.
func DefaultConfig() Config { return Config{Connections: 10} }

// Validate reports all wrong settings at once, as joined *setting.FieldError values.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(!c.DSN.IsZero(), "dsn", "must be set: postgres://… or sqlite:/path")
	sqldb.CheckDSN(&p, "dsn", c.DSN)
	p.Check(c.Connections >= 4, "connections", "must be >= 4, got %d", c.Connections)
	return p.Err()
}

// Options is set by the program, not by the settings.
type Options struct {
	// Instance names this instance in attempts, for people: nothing is decided by it. Required.
	Instance string
	// Log gets what no caller is told. Nil: nothing is logged.
	Log *slog.Logger

	// Metrics show this ledger from Open to CloseContext. Nil: they are not collected.
	Metrics *Metrics

	// Command: the program calls for nothing. Whether its kinds publish results says the table, in which the programs that
	// call have written it, and not Kind.Results.
	Command bool

	// Skew is added to the time of the database, in nanoseconds, for tests. Nil: nothing.
	Skew *atomic.Int64

	timeout time.Duration // of one transaction; zero: callTimeout
}

// callTimeout bounds one transaction that accepts, claims or settles, with its waits for locks.
const callTimeout = 15 * time.Second

func (o *Options) check() error {
	if o.Instance = clean(o.Instance); o.Instance == "" {
		return errors.New("once: ledger: the instance has no name: set Options.Instance")
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Skew = cmp.Or(o.Skew, new(atomic.Int64))
	o.timeout = cmp.Or(o.timeout, callTimeout)
	return nil
}
