package streams

import (
	"context"
	"sync/atomic"
)

// asker lets many who need to know the active set now share the answers: a caller gets an answer to
// a question that was asked after it came. A thousand readers that find their streams gone ask once
// or twice, not a thousand times.
type asker struct {
	ask  func(context.Context) ([]Activation, error)
	turn chan struct{} // capacity 1: held by who asks, and by who looks at the fields below

	asked  atomic.Int64 // questions begun
	answer []Activation
	err    error
	number int64 // which question the answer is to
}

func (a *asker) active(ctx context.Context) ([]Activation, error) {
	before := a.asked.Load()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.number > before && a.err == nil {
		return a.answer, nil
	}
	number := a.asked.Add(1)
	answer, err := a.ask(ctx)
	a.answer, a.err, a.number = answer, err, number
	return answer, err
}
