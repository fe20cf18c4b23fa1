package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// Life is the life of a Subscription, which embeds it. Subscribe starts the work of the transport,
// Drain and Close end it, Fail reports that it can't go on. Each Life is used once.
type Life struct {
	Out       chan *message.Message // the channel of Subscribe; closed when the work has returned
	Reading   context.Context       // ends when reading must stop
	Stop      context.CancelFunc    // ends Reading
	Abandoned context.Context       // ends when messages in flight are no longer waited for
	Abandon   context.CancelFunc    // ends Abandoned

	work         func(context.Context) error
	closeTimeout time.Duration
	failed       chan error
	ended        chan struct{} // closed after Out; err is set then
	err          error

	mu      sync.Mutex
	started bool
}

// NewLife returns a Life that was not started. Its work reads until Reading ends, then waits until
// no message is in flight or Abandoned has ended. Drain and Close return the error of work.
//
// The work runs once, at the latest at Drain or Close, when Reading has ended already. Its context
// has the values of the context of Subscribe, but not its end.
func NewLife(closeTimeout time.Duration, work func(context.Context) error) *Life {
	l := &Life{
		Out: make(chan *message.Message), work: work, closeTimeout: closeTimeout,
		failed: make(chan error, 1), ended: make(chan struct{}),
	}
	l.Reading, l.Stop = context.WithCancel(context.Background())
	l.Abandoned, l.Abandon = context.WithCancel(context.Background())
	return l
}

// Subscribe starts the work. The topic is ignored: a Subscription reads what its Source describes.
// The end of ctx ends Reading. The error wraps ErrStarted after a Subscribe, Drain or Close.
func (l *Life) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	if !l.start(ctx) {
		return nil, fmt.Errorf("the subscription %w", loop.ErrStarted)
	}
	return l.Out, nil
}

func (l *Life) start(ctx context.Context) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return false
	}
	l.started = true
	stopAfter := context.AfterFunc(ctx, l.Stop)
	go func() {
		defer close(l.ended)
		defer close(l.Out)
		defer stopAfter()
		l.err = l.work(context.WithoutCancel(ctx))
	}()
	return true
}

// Drain ends Reading and waits for the work. When ctx ends first, messages in flight are abandoned
// and delivered again elsewhere. Drain may be called more than once.
func (l *Life) Drain(ctx context.Context) error {
	l.Stop()
	l.start(context.Background())
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		l.Abandon()
		return ctx.Err()
	}
}

// Close drains for at most the close timeout, abandons what is in flight then, and waits for the
// work. It is idempotent.
func (l *Life) Close() error {
	abandon := time.AfterFunc(l.closeTimeout, l.Abandon)
	defer abandon.Stop()
	return l.Drain(context.Background())
}

// Fail reports the first permanent error.
func (l *Life) Fail(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// Failed delivers the error of Fail.
func (l *Life) Failed() <-chan error { return l.failed }
