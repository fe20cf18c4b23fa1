package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
)

// publishBatch is the number of records per publish call.
const publishBatch = 500

// topics is the part of Kafka that publishes.
type topics interface {
	Sink(topic string) pipeline.Sink
}

// campaign is a promotion to publish: the same id and summary for each type.
type campaign struct {
	promotion, summary int64
}

// announce publishes the started event of a type. totalCount sizes the streams.
func (c campaign) announce(ctx context.Context, to topics, typeName string, totalCount int64) error {
	payload, err := json.Marshal(promotiontype.Started{PromotionID: c.promotion, PromotionType: typeName, TotalCount: totalCount})
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(c.promotion, 10))
	if err := to.Sink(promotiontype.StartedTopic).Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish to %s: %w", promotiontype.StartedTopic, err)
	}
	return nil
}

// publish publishes the records of the targets. After each batch it calls published with the number
// of durable records. It returns that number, also with an error.
func (c campaign) publish(ctx context.Context, to topics, targets iter.Seq2[target, error], published func(int64)) (int64, error) {
	var total int64
	batches := map[string][]*message.Message{} // by topic
	flush := func(topic string) error {
		if err := to.Sink(topic).Publish(ctx, batches[topic]...); err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		total += int64(len(batches[topic]))
		batches[topic] = batches[topic][:0]
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
		topic := t.of.PublishTopic()
		if batches[topic] = append(batches[topic], msg); len(batches[topic]) == publishBatch {
			if err := flush(topic); err != nil {
				return total, err
			}
		}
	}
	for topic, rest := range batches {
		if len(rest) > 0 {
			if err := flush(topic); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

func (c campaign) record(t target) (*message.Message, error) {
	payload, err := t.of.Encode(c.promotion, c.summary, t.id, t.value)
	if err != nil {
		return nil, fmt.Errorf("target %d: %w", t.id, err)
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(t.id, 10))
	return msg, nil
}
