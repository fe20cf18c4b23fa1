package middleware

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// watchActivity reports messages in flight to the route's idle watch: a source with a message in
// flight is never idle.
func watchActivity(a pipeline.Activity, next message.HandlerFunc) message.HandlerFunc {
	if a == nil {
		return next
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		o := pipeline.OriginFrom(msg.Context())
		a.Began(o)
		defer a.Ended(o)
		return next(msg)
	}
}
