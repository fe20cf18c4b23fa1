package reclaim

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Config is what a person sets (plugins.reclaim). Start from DefaultConfig.
type Config struct {
	// MinIdle is how long an entry must have been pending without a sign of life. A target whose
	// readers give signs less often than that raises it for itself.
	MinIdle time.Duration `yaml:"min_idle"`
	// Interval is the time between two rounds of a domain for idle entries.
	Interval time.Duration `yaml:"interval"`
	// Count is the most entries claimed a stream and round.
	Count int `yaml:"count"`
	// Step is the most entries of one claim.
	Step int `yaml:"step"`
	// DeadCheck is the time between two looks for the entries of instances that are gone.
	DeadCheck time.Duration `yaml:"dead_check_interval"`
	// DeadAfter is how long an instance's presence must have been gone before its entries are claimed
	// without waiting for MinIdle. It must be longer than the renewal of a presence key (5 s), or a
	// Redis that lost its data would make everybody look dead.
	DeadAfter time.Duration `yaml:"dead_after"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		MinIdle:   5 * time.Minute,
		Interval:  time.Minute,
		Count:     100,
		Step:      10,
		DeadCheck: 5 * time.Second,
		DeadAfter: 10 * time.Second,
	}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, path, format string, args ...any) {
		if !ok {
			errs = append(errs, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
		}
	}
	check(c.MinIdle >= time.Millisecond, "min_idle", "must be >= 1ms, got %s", c.MinIdle)
	check(c.Interval > 0, "interval", "must be > 0, got %s", c.Interval)
	check(c.Count > 0, "count", "must be > 0, got %d", c.Count)
	check(c.Step > 0 && c.Step <= 100, "step", "must be 1..100, got %d", c.Step)
	check(c.DeadCheck > 0, "dead_check_interval", "must be > 0, got %s", c.DeadCheck)
	check(c.DeadAfter > redispoll.PresenceRenewal, "dead_after", "must be > %s, got %s", redispoll.PresenceRenewal, c.DeadAfter)
	return errors.Join(errs...)
}
