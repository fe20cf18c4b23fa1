package redisstream

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// Config is the settings section of the plugin (plugins.redisstream). It is about Sources only. A
// Sink has no MAXLEN, which would remove unread entries.
type Config struct {
	BlockTime     time.Duration `yaml:"block_time"`     // BLOCK of the library's XREADGROUP
	MaxIdle       time.Duration `yaml:"max_idle"`       // then another reader may claim
	ClaimInterval time.Duration `yaml:"claim_interval"` // between two claims of idle entries
	NackSleep     time.Duration `yaml:"nack_sleep"`     // before each redelivery, without a limit
	CloseTimeout  time.Duration `yaml:"close_timeout"`  // of a close without a drain
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

// Validate reports all errors at once.
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
