package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// waitingClient is a client for a group's consumer. It waits for a partition that can't be read,
// for as long as a session lasts. sarama reads the ends of a partition when a claim begins. Without
// an answer it ends the session of the member. So one partition without a leader would stop all
// others.
type waitingClient struct {
	sarama.Client
	coordination sarama.Client // for requests to the group's coordinator
	owned        *ownership
	backoff      pipeline.Backoff
	log          *slog.Logger
	session      atomic.Value  // of holder
	ends         sync.Map      // partition (int32) to the last OffsetNewest (int64)
	topicID      topicIDOf     // nil: ids are not known
	topics       sync.Map      // partition (int32) to the topicID before that
	refreshed    chan struct{} // a token after sarama has refreshed the metadata; may be nil

	mu     sync.Mutex
	silent map[int32]bool // partitions that can't be read
}

// holder gives contexts of several types the one type that an atomic.Value holds.
type holder struct{ context.Context }

// begin notes the session that is beginning.
func (p *waitingClient) begin(session context.Context) { p.session.Store(holder{session}) }

// assigned resets which partitions can't be read. Those that this member still owns are tried again
// soon.
func (p *waitingClient) assigned() {
	p.mu.Lock()
	p.silent = nil
	p.mu.Unlock()
}

// note notes whether a partition can be read.
func (p *waitingClient) note(partition int32, readable bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case readable:
		delete(p.silent, partition)
	case p.silent == nil:
		p.silent = map[int32]bool{partition: true}
	default:
		p.silent[partition] = true
	}
}

// unreadable counts the partitions that can't be read.
func (p *waitingClient) unreadable() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.silent)
}

// PartitionNotReadable implements sarama.Client. sarama calls it before a claim begins, repeatedly
// while there is no leader.
func (p *waitingClient) PartitionNotReadable(topic string, partition int32) bool {
	not := p.Client.PartitionNotReadable(topic, partition)
	p.note(partition, !not)
	return not
}

// LeaderAndEpoch implements sarama.Client. sarama calls it when a claim begins, and repeatedly
// after its leader was lost.
func (p *waitingClient) LeaderAndEpoch(topic string, partition int32) (*sarama.Broker, int32, error) {
	leader, epoch, err := p.Client.LeaderAndEpoch(topic, partition)
	p.note(partition, err == nil)
	return leader, epoch, err
}

// GetOffset implements sarama.Client. It retries until there is an answer, the session ends, or the
// error is permanent.
func (p *waitingClient) GetOffset(topic string, partition int32, at int64) (int64, error) {
	for attempt := 1; ; attempt++ {
		offset, err := p.offset(topic, partition, at)
		p.note(partition, err == nil)
		session, started := p.session.Load().(holder)
		switch {
		case err == nil:
			if attempt > 1 {
				p.log.Info("kafka partition can be read again", logs.Partition, partition)
			}
			if at == sarama.OffsetNewest {
				p.ends.Store(partition, offset)
			}
			return offset, nil
		case !started || fatal(err) || errors.Is(err, sarama.ErrClosedClient) || session.Err() != nil:
			return offset, err
		case attempt == 1:
			p.log.Warn("kafka partition can't be read, it is tried again", logs.Partition, partition, logs.Err(err))
		}
		if !p.pause(session, partition, p.backoff.Delay(attempt)) {
			return offset, err
		}
	}
}

// offset reads an offset, before the newest one also the id of the topic. sarama reads the newest
// one first when a claim begins. So the claim's position is of this topic, or of a later one.
func (p *waitingClient) offset(topic string, partition int32, at int64) (int64, error) {
	if at == sarama.OffsetNewest && p.topicID != nil {
		id, err := p.topicID(topic, partition)
		if err != nil {
			return 0, err
		}
		p.topics.Store(partition, id)
	}
	return p.Client.GetOffset(topic, partition, at)
}

// topicAtStart returns the id of the topic when the claim of a partition began.
func (p *waitingClient) topicAtStart(partition int32) topicID {
	id, _ := p.topics.Load(partition)
	topic, _ := id.(topicID)
	return topic
}

// RefreshMetadata implements sarama.Client. sarama calls it before a join, and after a partition has
// refused a fetch. The brokers of both clients change: sarama asks for the coordinator again only
// when its broker is no longer among them.
func (p *waitingClient) RefreshMetadata(topics ...string) error {
	err := errors.Join(p.Client.RefreshMetadata(topics...), p.coordination.RefreshMetadata(topics...))
	select {
	case p.refreshed <- struct{}{}:
	default:
	}
	return err
}

// pause waits for d; false when the session ended first, or the partition was revoked.
func (p *waitingClient) pause(session context.Context, partition int32, d time.Duration) bool {
	ctx, cancel := p.owned.during(session, partition)
	defer cancel()
	return loop.Sleep(ctx, d)
}

// Coordinator implements sarama.Client.
func (p *waitingClient) Coordinator(group string) (*sarama.Broker, error) {
	return p.coordination.Coordinator(group)
}

// RefreshCoordinator implements sarama.Client.
func (p *waitingClient) RefreshCoordinator(group string) error {
	return p.coordination.RefreshCoordinator(group)
}

// end returns the end of a partition when its claim began. A claim that begins at the newest offset
// begins there: sarama reads the end before, and nothing afterwards.
func (p *waitingClient) end(partition int32) int64 {
	end, _ := p.ends.Load(partition)
	offset, _ := end.(int64)
	return offset
}

var _ sarama.Client = (*waitingClient)(nil)
