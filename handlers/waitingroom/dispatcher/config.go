package dispatcher

import (
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// Config has the settings of a dispatcher.
type Config struct {
	// PromoteInterval is the time between two ticks of an event.
	PromoteInterval time.Duration `yaml:"promote_interval"`
	Promoter        Promoter      `yaml:"promoter"`
}

// Promoter is the pool that runs the ticks.
type Promoter struct {
	Workers int `yaml:"workers"` // ticks at the same time
	Queue   int `yaml:"queue"`   // ticks that wait; when it is full, the loop runs a tick itself
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{PromoteInterval: time.Second, Promoter: Promoter{Workers: 4, Queue: 256}}
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p pipeline.Problems
	p.Check(c.PromoteInterval >= 100*time.Millisecond, "promote_interval", "must be >= 100ms, got %s", c.PromoteInterval)
	p.Check(c.Promoter.Workers > 0, "promoter.workers", "must be > 0, got %d", c.Promoter.Workers)
	p.Check(c.Promoter.Queue >= 0, "promoter.queue", "must be >= 0, got %d", c.Promoter.Queue)
	return p.Err()
}
