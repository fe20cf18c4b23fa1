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
)

// patient is a client for a group's consumer. It waits for a partition that can't be read, for as long as a session lasts. sarama asks
// for the ends of a partition when a claim begins, and ends the session of the whole member when it gets no answer: a single
// partition without a leader would stop all others again and again.
type patient struct {
	sarama.Client
	coordination sarama.Client // for requests to the group's coordinator
	owned        *ownership
	backoff      pipeline.Backoff
	log          *slog.Logger
	session      atomic.Value // of holder
	ends         sync.Map     // partition (int32) to the last OffsetNewest that was answered (int64)

	mu     sync.Mutex
	silent map[int32]bool // partitions that can't be read
}

// holder gives contexts of several types the one type that an atomic.Value holds.
type holder struct{ context.Context }

// begin notes the session that is beginning.
func (p *patient) begin(session context.Context) { p.session.Store(holder{session}) }

// assigned forgets what is known of partitions: those that are still this member's and can't be read are tried again soon.
func (p *patient) assigned() {
	p.mu.Lock()
	p.silent = nil
	p.mu.Unlock()
}

// note notes whether a partition can be read.
func (p *patient) note(partition int32, readable bool) {
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
func (p *patient) unreadable() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.silent)
}

// PartitionNotReadable implements sarama.Client. sarama asks before a claim begins, again and again while there is no leader.
func (p *patient) PartitionNotReadable(topic string, partition int32) bool {
	not := p.Client.PartitionNotReadable(topic, partition)
	p.note(partition, !not)
	return not
}

// LeaderAndEpoch implements sarama.Client. sarama asks when a claim begins, and again and again after its leader was lost.
func (p *patient) LeaderAndEpoch(topic string, partition int32) (*sarama.Broker, int32, error) {
	leader, epoch, err := p.Client.LeaderAndEpoch(topic, partition)
	p.note(partition, err == nil)
	return leader, epoch, err
}

// GetOffset implements sarama.Client. It asks until there is an answer, the session ends, or waiting can't help.
func (p *patient) GetOffset(topic string, partition int32, at int64) (int64, error) {
	for attempt := 1; ; attempt++ {
		offset, err := p.Client.GetOffset(topic, partition, at)
		p.note(partition, err == nil)
		session, begun := p.session.Load().(holder)
		switch {
		case err == nil:
			if attempt > 1 {
				p.log.Info("kafka partition can be read again", pipeline.LogPartition, partition)
			}
			if at == sarama.OffsetNewest {
				p.ends.Store(partition, offset)
			}
			return offset, nil
		case !begun || fatal(err) || errors.Is(err, sarama.ErrClosedClient) || session.Err() != nil:
			return offset, err
		case attempt == 1:
			p.log.Warn("kafka partition can't be read, it is tried again", pipeline.LogPartition, partition, pipeline.Err(err))
		}
		if !p.pause(session, partition, p.backoff.Delay(attempt)) {
			return offset, err
		}
	}
}

// pause waits for d; false when the session ended first, or the partition was taken away.
func (p *patient) pause(session context.Context, partition int32, d time.Duration) bool {
	ctx, cancel := p.owned.during(session, partition)
	defer cancel()
	return sleep(ctx, d)
}

// Coordinator implements sarama.Client.
func (p *patient) Coordinator(group string) (*sarama.Broker, error) {
	return p.coordination.Coordinator(group)
}

// RefreshCoordinator implements sarama.Client.
func (p *patient) RefreshCoordinator(group string) error {
	return p.coordination.RefreshCoordinator(group)
}

// end returns the end of a partition when its claim began. A claim that begins at the newest offset begins there: sarama asks for
// the end before it begins, and for nothing afterwards.
func (p *patient) end(partition int32) int64 {
	end, _ := p.ends.Load(partition)
	offset, _ := end.(int64)
	return offset
}

var _ sarama.Client = (*patient)(nil)
