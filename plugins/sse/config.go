package sse

import (
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.sse.
type Config struct {
	// Heartbeat is the time between two events heartbeat of a stream. A page takes a stream as lost
	// after two of them and five seconds, so users learn of a dead connection sooner with a shorter
	// time.
	Heartbeat time.Duration `yaml:"heartbeat"`
}

const (
	minHeartbeat = time.Second
	maxHeartbeat = time.Minute // proxies close a connection without traffic, often after a minute
	// lateHeartbeat is what a busy server and the network add to a heartbeat.
	lateHeartbeat = 5 * time.Second
)

// defaultConfig returns the defaults.
func defaultConfig() Config { return Config{Heartbeat: 15 * time.Second} }

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	p.Check(c.Heartbeat >= minHeartbeat && c.Heartbeat <= maxHeartbeat, "heartbeat", "must be from %s to %s, got %s", minHeartbeat, maxHeartbeat, c.Heartbeat)
	return p.Err()
}
