package reclaim

import (
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
)

// markRecent is longer than the time since an instance that lives was marked. One that was marked
// before a round may get its first entries after it.
const markRecent = 2 * redis.PresenceRenewal

// Config is what a person sets (plugins.reclaim). Start from DefaultConfig.
type Config struct {
	// MinIdle is how long an entry must have been pending and not renewed. A target whose readers
	// renew less often raises it for itself.
	MinIdle time.Duration `yaml:"min_idle"`
	// Interval is the time between two rounds of a domain for idle entries.
	Interval time.Duration `yaml:"interval"`
	// Count is the limit of claimed entries per stream and round.
	Count int `yaml:"count"`
	// ClaimBatchSize is the limit of entries per claim.
	ClaimBatchSize int `yaml:"claim_batch_size"`
	// DeadCheck is the time between two checks for entries of dead instances.
	DeadCheck time.Duration `yaml:"dead_check_interval"`
	// PresenceTimeout is how long an instance's presence must have been gone before its entries are
	// claimed without waiting for MinIdle. It must be longer than the renewal of a presence key (5
	// s). Otherwise all instances would look dead after a loss of Redis's data.
	PresenceTimeout time.Duration `yaml:"presence_timeout"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		MinIdle:         5 * time.Minute,
		Interval:        time.Minute,
		Count:           100,
		ClaimBatchSize:  10,
		DeadCheck:       5 * time.Second,
		PresenceTimeout: 10 * time.Second,
	}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.MinIdle >= time.Millisecond, "min_idle", "must be >= 1ms, got %s", c.MinIdle)
	p.Positive("interval", c.Interval)
	p.Check(c.Count > 0, "count", "must be > 0, got %d", c.Count)
	p.Check(c.ClaimBatchSize > 0 && c.ClaimBatchSize <= 100, "claim_batch_size", "must be 1..100, got %d", c.ClaimBatchSize)
	p.Positive("dead_check_interval", c.DeadCheck)
	p.Check(c.PresenceTimeout > redis.PresenceRenewal, "presence_timeout", "must be > %s, got %s", redis.PresenceRenewal, c.PresenceTimeout)
	return p.Err()
}
