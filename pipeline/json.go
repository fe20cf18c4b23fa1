package pipeline

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// JSON returns a handler that decodes each payload (see Decode) and calls handle. Its errors are
// those of Decode and of handle.
func JSON[T any](handle func(context.Context, T) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var v T
		if err := Decode(msg.Payload, &v); err != nil {
			return nil, err
		}
		return nil, handle(msg.Context(), v)
	}
}

// JSONTo is JSON for a route with outputs. Each value that handle returns becomes one message, encoded
// as JSON; no value publishes nothing. The key of a message is the result of Out's method
// Key() string. Without that method it is the key of the message that was handled. The result of the
// method Output() string is the name of its output (SendTo), and without that method it goes to
// Route.To. Out may be any, so that each output has a type of its own. A value that can't be encoded
// is a permanent error.
func JSONTo[In, Out any](handle func(context.Context, In) ([]Out, error)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var v In
		if err := Decode(msg.Payload, &v); err != nil {
			return nil, err
		}
		values, err := handle(msg.Context(), v)
		if err != nil {
			return nil, err
		}
		out := make([]*message.Message, 0, len(values))
		for _, value := range values {
			payload, err := json.Marshal(value)
			if err != nil {
				return nil, Permanent(fmt.Errorf("encode %T: %w", value, err))
			}
			m := message.NewMessage(watermill.NewULID(), payload)
			key := DeliveryFrom(msg.Context()).Key
			if k, ok := any(value).(interface{ Key() string }); ok {
				key = k.Key()
			}
			if key != "" {
				m.Metadata.Set(MetaKey, key)
			}
			if o, ok := any(value).(interface{ Output() string }); ok {
				m = SendTo(m, o.Output())
			}
			out = append(out, m)
		}
		return out, nil
	}
}

// Decode decodes a JSON payload into v and calls Validate() error of v if it has that method.
// Unknown fields are ignored. The error is permanent, and of class undecodable, or invalid when it is
// that of Validate.
func Decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return WithClass(Permanent(fmt.Errorf("decode %T: %w", v, err)), ClassUndecodable)
	}
	if val, ok := v.(interface{ Validate() error }); ok {
		if err := val.Validate(); err != nil {
			return WithClass(Permanent(err), ClassInvalid)
		}
	}
	return nil
}
