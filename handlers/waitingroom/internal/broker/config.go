package broker

import (
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const minInterval = 100 * time.Millisecond

// Config has the settings of a broker.
type Config struct {
	// BroadcastInterval is the time between two reads of the rank tables. Users near the front
	// receive their position after each.
	BroadcastInterval time.Duration `yaml:"broadcast_interval"`
	// RequestsPerUser is how many requests a user may send to one broker in 10 s, for all events
	// together; 0: no limit.
	RequestsPerUser int `yaml:"requests_per_user"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{BroadcastInterval: time.Second, RequestsPerUser: 200}
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.BroadcastInterval >= minInterval && c.BroadcastInterval <= room.MaxInterval, "broadcast_interval", "must be from %s to %s, got %s",
		minInterval, room.MaxInterval, c.BroadcastInterval)
	p.Check(c.RequestsPerUser >= 0, "requests_per_user", "must be >= 0, got %d", c.RequestsPerUser)
	return p.Err()
}
