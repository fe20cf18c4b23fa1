package joblog

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	// FeedField is the field of a feed's entries. It has the JSON of an event.
	FeedField = "event"
	// ResetField is the field of an entry that says that a job was reset. It has the id of the job.
	ResetField = "reset"
	// feedMax is about the maximum number of entries in a feed.
	feedMax = 20_000
)

// Publish adds events (Answer.Text) to the feed of a shard, in their order and in one pipeline. No
// call is sent again after a network error: a transient event is shown at most once. After an error
// any of them may be in the feed.
func (l *Log) Publish(ctx context.Context, domain string, shard int, texts []string) error {
	if len(texts) == 0 {
		return nil
	}
	key := FeedKey(domain, shard)
	calls := make([]*redis.Call, 0, len(texts)+1)
	for _, text := range texts {
		calls = append(calls, redis.Command("XADD", key, "MAXLEN", "~", feedMax, "*", FeedField, text).Once())
	}
	calls = append(calls, redis.Command("PEXPIRE", key, l.config.LogTTL.Milliseconds()))
	if err := l.server.Do(ctx, calls...); err != nil {
		return fmt.Errorf("publish %d events to the feed: %w", len(texts), err)
	}
	return nil
}

// Reset deletes the log and the state of a job, so that it can run again, and tells the gateways by
// the feed of its shard. Watchers then receive a gap that takes all numbers back, and the numbers of
// the second run. After an error either may have happened.
func (l *Log) Reset(ctx context.Context, domain string, shard int, jobID string) error {
	err := l.server.Do(ctx,
		redis.Command("DEL", LogKey(domain, jobID), StateKey(domain, jobID)),
		redis.Command("XADD", FeedKey(domain, shard), "MAXLEN", "~", feedMax, "*", ResetField, jobID),
		redis.Command("PEXPIRE", FeedKey(domain, shard), l.config.LogTTL.Milliseconds()),
	)
	if err != nil {
		return fmt.Errorf("reset job %s: %w", jobID, err)
	}
	return nil
}
