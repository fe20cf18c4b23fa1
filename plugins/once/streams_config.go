package once

import (
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/streams"
)

// What an entry of a stream carries, for StreamsConfig.Entries.
const (
	// EntriesRows has an entry for each row of the ledger, which may have many effects. It carries nothing for other
	// programs.
	EntriesRows = "rows"
	// EntriesRecords has an entry for each effect, with its record.
	EntriesRecords = "records"
)

// StreamsConfig are the settings of the streams of a kind with via: streams.
type StreamsConfig struct {
	streams.Common `yaml:",inline"`
	// MaxActive is how many groups of the kind have a stream at once. Effects of others wait for their grace.
	MaxActive int `yaml:"max_active"`
	// Entries says what an entry carries: EntriesRows, or EntriesRecords for other programs that read the streams.
	Entries string `yaml:"entries"`
	// Redis is a server of its own for the streams. Nil: the shared one (plugins.redis).
	Redis *redis.ClientConfig `yaml:"redis"`
}

func defaultStreams() StreamsConfig {
	return StreamsConfig{Common: streams.DefaultCommon(), MaxActive: 1000, Entries: EntriesRows}
}

// Validate reports every mistake at once.
func (c StreamsConfig) Validate() error {
	p := setting.Problems{c.Common.Validate()}
	p.Check(c.MaxActive >= 1, "max_active", "must be >= 1, got %d", c.MaxActive)
	p.Check(c.Entries == EntriesRows || c.Entries == EntriesRecords, "entries", "must be %s or %s, got %q", EntriesRows, EntriesRecords, c.Entries)
	if c.Redis != nil {
		p.Under("redis", c.Redis.Validate())
	}
	return p.Err()
}
