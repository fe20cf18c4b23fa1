package middleware

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// recoverPanics turns a panic into an error of class panic that carries the stack.
func recoverPanics(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		defer func() {
			if p := recover(); p != nil {
				out, err = nil, pipeline.WithClass(&panicError{value: p, stack: debug.Stack()}, pipeline.ClassPanic)
			}
		}()
		return next(msg)
	}
}

type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }
