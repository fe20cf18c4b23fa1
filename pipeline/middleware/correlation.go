package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// metaCorrelation is the metadata key of Watermill's CorrelationID middleware, so that services
// that use it and Millrace continue each other's ids.
const metaCorrelation = "correlation_id"

// correlate gives the message a correlation id when none came, and copies it to what the handler
// returns. Watermill's own middleware would set an empty one.
func correlate(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
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
		out, err := next(msg)
		for i, m := range out {
			if m == nil {
				return nil, errors.Join(err, pipeline.Permanent(fmt.Errorf("the handler's message %d of %d is nil", i+1, len(out))))
			}
			if m.Metadata == nil {
				m.Metadata = message.Metadata{}
			}
			if m.Metadata.Get(metaCorrelation) == "" {
				m.Metadata.Set(metaCorrelation, id)
			}
		}
		return out, err
	}
}
