package pipeline

import (
	"fmt"
	"maps"
	"slices"
)

// PublishError returns the error of a publish from that of each message: nil when none failed, the
// error itself for one message, otherwise a *PartialError.
func PublishError(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	failed := map[int]error{}
	for i, err := range errs {
		if err != nil {
			failed[i] = err
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return &PartialError{Failed: failed, Size: len(errs)}
}

// PartialError says which messages of one publish are not known to be published. All others are.
// An outbox keeps the failed ones, behind all others. On a route with HandleBatch, only the failed
// ones fail their messages.
type PartialError struct {
	// Failed has the reason per failed message, by its index in the batch. It is never empty.
	Failed map[int]error
	// Size is the number of messages in the batch.
	Size int
}

// Error names the counts and the first reason.
func (e *PartialError) Error() string {
	return fmt.Sprintf("%d of %d not published: %v", len(e.Failed), e.Size, e.Unwrap())
}

// Unwrap returns the reason of the first failed message.
func (e *PartialError) Unwrap() error {
	return e.Failed[slices.Min(slices.Collect(maps.Keys(e.Failed)))]
}
