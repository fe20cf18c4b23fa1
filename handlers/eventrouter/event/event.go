package event

import (
	"crypto/md5" //nolint:gosec // the rule of the shards, which producers in all languages share
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
)

// Event is one step of a job. Its JSON is what the log, the feed and the watchers have.
type Event struct {
	Domain      string          `json:"domain"`
	JobID       string          `json:"job_id"`
	Stage       string          `json:"stage"`
	Seq         int64           `json:"seq,omitempty"` // 0: transient
	Status      string          `json:"status,omitempty"`
	Data        json.RawMessage `json:"data,omitempty"`
	Timestamp   string          `json:"timestamp,omitempty"` // RFC 3339, or Unix seconds
	Traceparent string          `json:"traceparent,omitempty"`
	EventID     string          `json:"event_id,omitempty"`  // the producer's
	StreamID    string          `json:"stream_id,omitempty"` // of the stream entry
}

// JSON returns the JSON form on one line. It fails only when Data is no JSON.
func (e Event) JSON() ([]byte, error) { return json.Marshal(e) }

// Decode is the reverse of JSON.
func Decode(text []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(text, &e); err != nil {
		return Event{}, fmt.Errorf("decode the event of a job: %w", err)
	}
	return e, nil
}

// Stages says what the stages of the events mean.
type Stages struct {
	// Transient events have no number. They are in no log, and reach only those that watch now.
	Transient []string `yaml:"transient_stages"`
	// Terminal events end their job.
	Terminal []string `yaml:"terminal_stages"`
}

// DefaultStages returns the defaults: token is transient, done and error are terminal.
func DefaultStages() Stages {
	return Stages{Transient: []string{"token"}, Terminal: []string{"done", "error"}}
}

// IsTransient reports whether events of the stage have no number.
func (s Stages) IsTransient(stage string) bool { return slices.Contains(s.Transient, stage) }

// IsTerminal reports whether an event of the stage ends its job.
func (s Stages) IsTerminal(stage string) bool { return slices.Contains(s.Terminal, stage) }

// Shard returns the shard of a job. The first 8 bytes of the MD5 of its id are a big-endian number.
// The shard is that number modulo the number of shards.
func Shard(jobID string, shards int) int {
	sum := md5.Sum([]byte(jobID)) //nolint:gosec // see the import
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(shards))
}
