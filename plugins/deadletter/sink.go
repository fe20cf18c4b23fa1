package deadletter

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// Sink returns the dead-letter sink of a topic, for Policy.DeadLetter of a route without a ledger.
// It puts a dead letter into the store, if one is configured, before it publishes it. It is safe
// for concurrent use.
func (p *Plugin) Sink(topic string) pipeline.Sink {
	// Exported as 0 from the first scrape, so that the first dead letter is an increase.
	p.metrics.published.WithLabelValues(topic)
	p.metrics.unpublished.WithLabelValues(topic)
	return &sink{Sink: p.topics.Sink(topic), plugin: p, topic: topic}
}

type sink struct {
	pipeline.Sink
	plugin *Plugin
	topic  string
}

// Publish returns nil when each dead letter is in its topic or, where the topic refuses its
// smallest form, in the store. The error is permanent when the topic refuses a dead letter and no
// store is configured.
func (s *sink) Publish(ctx context.Context, msgs ...*message.Message) error {
	batch := make([]outgoing, len(msgs))
	for i, m := range msgs {
		batch[i] = outgoing{fromMessage(s.topic, m), m}
	}
	err := s.plugin.publish(ctx, batch)
	if failed, ok := errors.AsType[*pipeline.PartialError](err); ok {
		return failed.Unwrap()
	}
	return err
}
