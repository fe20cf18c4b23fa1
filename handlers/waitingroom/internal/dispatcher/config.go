package dispatcher

import (
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const minInterval = 100 * time.Millisecond

// Config has the settings of a dispatcher.
type Config struct {
	// PromoteInterval is the time between two ticks of an event.
	PromoteInterval time.Duration `yaml:"promote_interval"`
	Promoter        Promoter      `yaml:"promoter"`
}

// Promoter is the pool that runs the ticks.
type Promoter struct {
	Workers int `yaml:"workers"` // calls at the same time
	Queue   int `yaml:"queue"`   // calls that wait; when it is full, the loop makes one itself
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{PromoteInterval: time.Second, Promoter: Promoter{Workers: 4, Queue: 256}}
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.PromoteInterval >= minInterval && c.PromoteInterval <= room.MaxInterval, "promote_interval", "must be from %s to %s, got %s",
		minInterval, room.MaxInterval, c.PromoteInterval)
	p.Check(c.Promoter.Workers > 0, "promoter.workers", "must be > 0, got %d", c.Promoter.Workers)
	p.Check(c.Promoter.Queue >= 0, "promoter.queue", "must be >= 0, got %d", c.Promoter.Queue)
	return p.Err()
}
