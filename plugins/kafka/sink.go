package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// sink publishes to one topic by the plugin's shared publisher.
type sink struct {
	plugin *Plugin
	topic  string
}

func (s sink) Describe() pipeline.Endpoint { return pipeline.Endpoint{Kind: Kind, Name: s.topic} }

// Publish returns nil when every message is on all in-sync replicas, otherwise a
// pipeline.PublishError. When ctx ends first, a failed message may still become durable. A message
// beyond a size limit is a permanent error of class too_large. One that the topic refuses for
// another reason is a permanent error of class invalid_record, except for its time: then the clock of
// this instance differs from the broker's, and the error of class invalid_timestamp is not permanent.
func (s sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	live, err := s.plugin.open(ctx, s.topic)
	if err != nil {
		return err
	}
	errs := live.publisher.publish(ctx, s.topic, live.limit(s.topic), msgs)
	isMissing := func(err error) bool { return errors.Is(err, sarama.ErrUnknownTopicOrPartition) }
	if slices.ContainsFunc(errs, isMissing) {
		live.drop(s.topic) // it was deleted, or never created
		if !live.config.CreateTopics {
			how := s.plugin.howToCreate(s.topic)
			for i, err := range errs {
				if isMissing(err) {
					errs[i] = fmt.Errorf("%w (%s)", err, how)
				}
			}
		}
	}
	return pipeline.PublishError(errs)
}

var _ pipeline.Sink = sink{}
