package embedded

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config holds the settings of the embedded servers. The zero value keeps everything in memory.
type Config struct {
	// Dir is the data folder, created when absent, for its owner only.
	// Empty: everything is in memory and lost at the end.
	Dir string `yaml:"dir"`
	// KafkaPartitions is the number of partitions of a new topic, at most 1000. Zero: 8.
	KafkaPartitions int `yaml:"kafka_partitions"`
	// Topics are created at the start unless they exist. Other topics are not created
	// automatically.
	Topics []string `yaml:"topics"`
	// SyncWrites makes every record survive a power cut, not only kill -9. It costs one fsync per
	// batch.
	SyncWrites bool `yaml:"sync_writes"`
}

// The numbers match the servers of `make services` where those have them.
const (
	defaultPartitions = 8
	maxPartitions     = 1000
	minSessionTimeout = time.Second

	maxMessageBytes = "4194304"   // 4 MiB: a record of 1 MiB with its headers must pass
	segmentBytes    = "16777216"  // 16 MiB: expired data is removed in pieces of this size
	retentionBytes  = "536870912" // 512 MiB per partition on disk; memory holds only batch indexes
)

func (c Config) withDefaults() Config {
	if c.KafkaPartitions == 0 {
		c.KafkaPartitions = defaultPartitions
	}
	return c
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.KafkaPartitions >= 0 && c.KafkaPartitions <= maxPartitions, "kafka_partitions", "must be from 1 to %d, got %d", maxPartitions, c.KafkaPartitions)
	for i, topic := range c.Topics {
		p.Check(topic != "", fmt.Sprintf("topics[%d]", i), "must not be empty")
	}
	return p.Err()
}
