package middleware

import (
	"fmt"
	"runtime/debug"

	"github.com/millrace-io/millrace/pipeline"
)

// panicked returns the error of a panic. It has the class panic, and the stack.
func panicked(value any) error {
	return pipeline.WithClass(&panicError{value: value, stack: debug.Stack()}, pipeline.ClassPanic)
}

type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }
