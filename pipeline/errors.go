package pipeline

import (
	"context"
	"errors"
	"time"
)

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent marks err as one that no retry can cure: the message is dead-lettered now.
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

// RetryAfter marks err as one to be retried, no sooner than d from now. RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// RetryDelay returns the delay that err asks for; ok is false when it asks for none.
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

// ErrUnavailable marks an error that says a server this process needs could not be had. Transports
// wrap it when Service.Start gave up waiting; the binary exits with code 3 then.
var ErrUnavailable = errors.New("server unavailable")
