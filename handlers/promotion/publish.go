package promotion

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// publishBatch is how many records are published in one call.
const publishBatch = 500

// topics is what a publisher needs of Kafka.
type topics interface {
	Sink(topic string) pipeline.Sink
}

// campaign is a promotion that is published from here: the same id and summary for every type.
type campaign struct {
	promotion, summary int64
}

// announce publishes the started event of a type. totalCount is a hint for sizing; 0 when not known.
func (c campaign) announce(ctx context.Context, to topics, kind string, totalCount int64) error {
	payload, err := json.Marshal(StartedMessage{PromotionID: c.promotion, PromotionType: kind, TotalCount: totalCount})
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(c.promotion, 10))
	if err := to.Sink(startedTopic).Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish to %s: %w", startedTopic, err)
	}
	return nil
}

// publish publishes the records of the targets and calls published after every batch with the number that
// is durable. It returns how many are, also with an error.
func (c campaign) publish(ctx context.Context, to topics, targets iter.Seq2[target, error], published func(int64)) (int64, error) {
	var total int64
	batches := map[string][]*message.Message{}
	flush := func(kind string) error {
		s, _ := strategyOf(kind)
		if err := to.Sink(s.publishTopic()).Publish(ctx, batches[kind]...); err != nil {
			return fmt.Errorf("publish to %s: %w", s.publishTopic(), err)
		}
		total += int64(len(batches[kind]))
		batches[kind] = batches[kind][:0]
		published(total)
		return nil
	}
	for t, err := range targets {
		if err != nil {
			return total, err
		}
		msg, err := c.record(t)
		if err != nil {
			return total, err
		}
		if batches[t.kind] = append(batches[t.kind], msg); len(batches[t.kind]) == publishBatch {
			if err := flush(t.kind); err != nil {
				return total, err
			}
		}
	}
	for kind, rest := range batches {
		if len(rest) > 0 {
			if err := flush(kind); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

func (c campaign) record(t target) (*message.Message, error) {
	s, known := strategyOf(t.kind)
	if !known {
		return nil, fmt.Errorf("unknown promotion type %q", t.kind)
	}
	payload, err := s.record(c.promotion, c.summary, t.id, t.value)
	if err != nil {
		return nil, fmt.Errorf("target %d: %w", t.id, err)
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(t.id, 10))
	return msg, nil
}
