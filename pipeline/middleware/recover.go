package middleware

import (
	"fmt"
	"runtime/debug"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// stepRecover is the step recover: a panic is an error.
func (*route) stepRecover(msg *message.Message, next message.HandlerFunc) (out []*message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, panicked(p)
		}
	}()
	return next(msg)
}

// panicked returns the error of a panic. It has the class panic, and the stack.
func panicked(value any) error {
	return pipeline.WithClass(&panicError{value: value, stack: debug.Stack()}, pipeline.ClassPanic)
}

type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }
