package joblog

import (
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config has the limits of logs and states.
type Config struct {
	// StateTTL is the life of a state from the last event.
	StateTTL time.Duration `yaml:"state_ttl"`
	// LogTTL is the life of a log from the last event, and that of a feed.
	LogTTL time.Duration `yaml:"log_ttl"`
	// LogTTLAfterEnd is the life of a log from the end of its job.
	LogTTLAfterEnd time.Duration `yaml:"log_ttl_after_end"`
	// LogMax is the maximum number of events in a log. The lowest numbers leave it. A log with
	// holes may exceed it by a tenth.
	LogMax int `yaml:"log_max"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{StateTTL: time.Hour, LogTTL: time.Hour, LogTTLAfterEnd: 10 * time.Minute, LogMax: 1000}
}

// maxLogMax bounds the time that the server needs to sort the numbers of one log.
const maxLogMax = 10_000

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	for name, d := range map[string]time.Duration{"state_ttl": c.StateTTL, "log_ttl": c.LogTTL, "log_ttl_after_end": c.LogTTLAfterEnd} {
		p.Check(d >= time.Second, name, "must be >= 1s, got %s", d)
	}
	p.Check(c.LogMax >= 1 && c.LogMax <= maxLogMax, "log_max", "must be 1..%d, got %d", maxLogMax, c.LogMax)
	return p.Err()
}
