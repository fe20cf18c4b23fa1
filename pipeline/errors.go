package pipeline

import (
	"context"
	"errors"
	"time"
)

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry can fix: its message becomes a dead letter at once.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err was marked by Permanent.
func IsPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

type retryAfterError struct {
	err   error
	after time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// RetryAfter marks err as one to be retried, no sooner than d from now. A retry topic keeps the
// message until then (Delayer). Without a retry topic the message waits in flight and blocks its
// place in the window. The longest hold, a drain, or the loss of the partition ends the wait early.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// RetryDelay returns the delay of a RetryAfter in err, and whether there is one.
func RetryDelay(err error) (d time.Duration, ok bool) {
	var r *retryAfterError
	if errors.As(err, &r) {
		return r.after, true
	}
	return 0, false
}

type classError struct {
	err   error
	class string
}

func (e *classError) Error() string { return e.err.Error() }
func (e *classError) Unwrap() error { return e.err }

// WithClass names the class of err for dead letters and metrics: a short snake_case word such as
// undecodable, conflict or rejected. The outermost class wins. WithClass(nil, …) is nil.
func WithClass(err error, class string) error {
	if err == nil {
		return nil
	}
	return &classError{err, class}
}

// Class returns the class of err; without one it is "permanent" for a Permanent error, "timeout"
// for an exceeded deadline, otherwise "error".
func Class(err error) string {
	var c *classError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &c):
		return c.class
	case errors.Is(err, context.DeadlineExceeded):
		return classTimeout
	case IsPermanent(err):
		return classPermanent
	default:
		return classOther
	}
}

// ErrGoexit means that a handler ended its goroutine (runtime.Goexit). Its message stays unsettled.
var ErrGoexit = errors.New("the handler ended its goroutine (runtime.Goexit)")

// ErrUnavailable marks the error of a Service.Start that waited for a server in vain. The binary
// then exits with code 3.
var ErrUnavailable = errors.New("server unavailable")
