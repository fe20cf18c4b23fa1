package redisstream

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// Config is the settings section of the plugin (plugins.redisstream). It is about Sources only: a
// Sink has no settings, in particular no MAXLEN, which removes entries that nobody has read.
type Config struct {
	BlockTime     time.Duration `yaml:"block_time"`     // BLOCK of the library's XREADGROUP
	MaxIdle       time.Duration `yaml:"max_idle"`       // after which another reader may claim an entry; the same in every instance
	ClaimInterval time.Duration `yaml:"claim_interval"` // how often idle entries of others are looked for
	NackSleep     time.Duration `yaml:"nack_sleep"`     // pause before a nacked message is delivered again; the library retries forever
	CloseTimeout  time.Duration `yaml:"close_timeout"`  // of a subscription that is closed without having been drained
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		BlockTime:     100 * time.Millisecond,
		MaxIdle:       5 * time.Minute,
		ClaimInterval: 5 * time.Second,
		NackSleep:     time.Second,
		CloseTimeout:  5 * time.Second,
	}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		path  string
		value time.Duration
	}{
		{"block_time", c.BlockTime},
		{"max_idle", c.MaxIdle},
		{"claim_interval", c.ClaimInterval},
		{"nack_sleep", c.NackSleep},
		{"close_timeout", c.CloseTimeout},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, &pipeline.FieldError{Path: d.path, Problem: fmt.Sprintf("must be >= 1ms, got %s", d.value)})
		}
	}
	return errors.Join(errs...)
}
