package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// dueRecords is how many records of a partition of a retry topic are read for the next due time.
// Records with one delay are in order, so the first is enough; other routes or longer backoffs mix
// the delays.
const dueRecords = 100

// sharedConnection is the key of the *connection in the context that Connect returns.
type sharedConnection struct{}

// Connect implements operate.Connecting. It uses the connection of the service where that runs, and
// that of ctx if it has one.
func (g groupSource) Connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	if _, has := ctx.Value(sharedConnection{}).(*connection); has {
		return ctx, func() {}, nil
	}
	closeIt = func() {}
	live, err := g.plugin.connected()
	if err != nil {
		if live, err = g.plugin.standalone(ctx); err != nil {
			return nil, nil, err
		}
		closeIt = func() { _ = live.close(ctx) } // it has published nothing
	}
	return context.WithValue(ctx, sharedConnection{}, live), closeIt, nil
}

// Backlog implements operate.Measured: the records from the group's commits to the ends of the
// partitions, without those that the commits name as done. They include those in flight. The oldest of
// them is the first that is not done.
func (g groupSource) Backlog(ctx context.Context) (operate.Backlog, error) {
	ctx, done, err := g.Connect(ctx)
	if err != nil {
		return operate.Backlog{}, err
	}
	defer done()
	live, _ := ctx.Value(sharedConnection{}).(*connection)
	b, err := g.backlog(ctx, live)
	switch {
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return operate.Backlog{Waiting: new(int64)}, nil
	case err != nil:
		return operate.Backlog{}, answered(err)
	}
	return b, nil
}

func (g groupSource) backlog(ctx context.Context, live *connection) (operate.Backlog, error) {
	// A refresh of the client's metadata asks for an absent topic several times, with waits in between.
	described, err := live.describe(g.topic)
	if err != nil {
		return operate.Backlog{}, err
	}
	t := described[g.topic]
	if t == nil || t.Err == sarama.ErrUnknownTopicOrPartition {
		return operate.Backlog{}, sarama.ErrUnknownTopicOrPartition
	}
	readers, _, err := live.scanners(g.topic, g.plugin.log)
	if err != nil {
		return operate.Backlog{}, err
	}
	partitions := make([]int32, len(readers))
	for i, r := range readers {
		partitions[i] = r.partition
	}
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	if err != nil {
		return operate.Backlog{}, err
	}
	commits, err := groupCommits(admin, g.group, g.topic, partitions)
	if err != nil {
		return operate.Backlog{}, err
	}
	b := operate.Backlog{Waiting: new(int64)}
	retries := g.plugin.retries(g.topic)
	for i := range readers {
		r := &readers[i]
		commit, committed := commits[r.partition]
		next := live.goesOn(r, commit, committed, topicID(t.Uuid))
		r.offset = next.base
		done := next.done.between(r.offset, r.end)
		if r.offset >= r.end {
			continue
		}
		*b.Waiting += r.end - r.offset - int64(len(done))
		if err := g.first(ctx, r, done, retries, &b); err != nil {
			return operate.Backlog{}, err
		}
	}
	return b, nil
}

// goesOn returns where the group goes on reading a partition of the topic id, and what its commit names as done and as
// crashes from there. A commit of a topic that was deleted, or outside the log, says nothing of the records.
func (c *connection) goesOn(r *partitionScan, commit progress, committed bool, id topicID) progress {
	switch {
	case committed && commit.topic.differs(id):
	case committed && r.offset <= commit.base && commit.base <= r.end:
		return commit
	case c.config.InitialOffset == "newest": // of a group that has never read the partition, too
		return progress{base: r.end}
	}
	return progress{base: r.offset}
}

// first reads the first records that are not done: the oldest one's time, and when the next of a retry
// topic is due. What an open transaction hides is left out.
func (g groupSource) first(ctx context.Context, r *partitionScan, done doneBefore, retries bool, b *operate.Backlog) error {
	ended := errors.New("enough was read")
	n := 0
	r.scan = &Scan{}
	r.each = func(record Scanned) error {
		if done.has(record.Offset) {
			return ctx.Err()
		}
		if n == 0 {
			b.Older(record.Time, position(g.topic, r.partition, record.Offset))
		}
		if n++; retries {
			meta := unmarshal(&sarama.ConsumerMessage{Headers: record.headers}).Metadata
			due := pipeline.DueTime(meta, time.Now())
			if !due.IsZero() && (b.NextDue.IsZero() || due.Before(b.NextDue)) {
				b.NextDue = due
			}
		}
		if !retries || n == dueRecords {
			return ended
		}
		return ctx.Err()
	}
	r.size = scanBytes
	for r.offset < r.end && ctx.Err() == nil {
		before := r.offset
		err := r.fetch()
		var own callerError
		switch {
		case errors.As(err, &own) && errors.Is(own.error, ended):
			return nil
		case err != nil:
			return err
		case r.offset == before && r.size == scanBytes:
			return nil // nothing of it can be read now
		}
	}
	return ctx.Err()
}

var _ operate.Connecting = groupSource{}
