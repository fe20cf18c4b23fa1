package middleware

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// metaCorrelation is the metadata key of Watermill's CorrelationID middleware, so that services
// that use it and Millrace continue each other's ids.
const metaCorrelation = "correlation_id"

// stepCorrelation is the step correlation: the outputs continue the correlation id of their message.
func (*route) stepCorrelation(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	id := correlationOf(msg)
	out, err := next(msg)
	if err == nil {
		err = correlate(out, id)
	}
	return out, err
}

// correlationOf returns the correlation id of a message, and gives it one when none came.
// Watermill's own middleware would set an empty one.
func correlationOf(msg *message.Message) string {
	id := msg.Metadata.Get(metaCorrelation)
	if id == "" {
		if id = msg.UUID; id == "" {
			id = watermill.NewULID()
		}
		if msg.Metadata == nil {
			msg.Metadata = message.Metadata{}
		}
		msg.Metadata.Set(metaCorrelation, id)
	}
	return id
}

// correlate gives the outputs of a handler the id of their message.
func correlate(out []*message.Message, id string) error {
	for i, m := range out {
		if m == nil {
			return pipeline.Permanent(fmt.Errorf("the handler's message %d of %d is nil", i+1, len(out)))
		}
		if m.Metadata == nil {
			m.Metadata = message.Metadata{}
		}
		if m.Metadata.Get(metaCorrelation) == "" {
			m.Metadata.Set(metaCorrelation, id)
		}
	}
	return nil
}
