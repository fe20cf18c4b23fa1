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
}

// holder gives contexts of several types the one type that an atomic.Value holds.
type holder struct{ context.Context }

// begin notes the session that is beginning.
func (p *patient) begin(session context.Context) { p.session.Store(holder{session}) }

// GetOffset implements sarama.Client. It asks until there is an answer, the session ends, or waiting can't help.
func (p *patient) GetOffset(topic string, partition int32, at int64) (int64, error) {
	for attempt := 1; ; attempt++ {
		offset, err := p.Client.GetOffset(topic, partition, at)
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
