package pipeline

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// JSON adapts a function of a typed message to a handler. Unknown fields are ignored; a payload
// that can't be decoded, or whose Validate() error method refuses it, is permanent.
func JSON[T any](handle func(context.Context, T) error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		var v T
		if err := Decode(msg.Payload, &v); err != nil {
			return nil, err
		}
		return nil, handle(msg.Context(), v)
	}
}

// Decode decodes a JSON payload into v and validates it when v has a Validate() error method.
// The error is permanent and of class undecodable.
func Decode(payload []byte, v any) error {
	if err := json.Unmarshal(payload, v); err != nil {
		return WithClass(Permanent(fmt.Errorf("decode %T: %w", v, err)), ClassUndecodable)
	}
	if val, ok := v.(interface{ Validate() error }); ok {
		if err := val.Validate(); err != nil {
			return WithClass(Permanent(err), ClassUndecodable)
		}
	}
	return nil
}
