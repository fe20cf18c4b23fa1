package streams

import (
	"context"
	"sync/atomic"
)

// activeCache shares reads of the active set between concurrent callers. A caller gets the result
// of a read that started after its call. A thousand readers that find their streams gone cause one
// or two reads.
type activeCache struct {
	read func(context.Context) ([]Activation, error)
	lock chan struct{} // capacity 1: guards the read and the fields below

	started atomic.Int64 // reads started
	answer  []Activation
	err     error
	number  int64 // the read that the answer is from

	known atomic.Pointer[[]Activation] // the answer of the last read without an error
}

// last returns what the last read without an error has found. It waits for no read.
func (a *activeCache) last() []Activation {
	if known := a.known.Load(); known != nil {
		return *known
	}
	return nil
}

func (a *activeCache) get(ctx context.Context) ([]Activation, error) {
	before := a.started.Load()
	select {
	case a.lock <- struct{}{}:
		defer func() { <-a.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.number > before && a.err == nil {
		return a.answer, nil
	}
	number := a.started.Add(1)
	answer, err := a.read(ctx)
	a.answer, a.err, a.number = answer, err, number
	if err == nil {
		a.known.Store(&answer)
	}
	return answer, err
}
