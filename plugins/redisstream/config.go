package redisstream

import (
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
	var p pipeline.Problems
	positive := func(path string, d time.Duration) { p.Check(d >= time.Millisecond, path, "must be >= 1ms, got %s", d) }
	positive("block_time", c.BlockTime)
	positive("max_idle", c.MaxIdle)
	positive("claim_interval", c.ClaimInterval)
	positive("nack_sleep", c.NackSleep)
	positive("close_timeout", c.CloseTimeout)
	return p.Err()
}
