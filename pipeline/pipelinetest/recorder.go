package pipelinetest

import (
	"context"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// Recorder is a Sink that keeps what is published. Safe for concurrent use.
type Recorder struct {
	// Name is the topic it describes itself as.
	Name string

	mu      sync.Mutex
	msgs    []*message.Message
	err     error
	changed chan struct{}
}

// NewRecorder returns an empty recorder.
func NewRecorder(name string) *Recorder { return &Recorder{Name: name, changed: make(chan struct{})} }

// FailWith makes every further publish fail with err, until FailWith(nil).
func (r *Recorder) FailWith(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// Messages returns what was published so far.
func (r *Recorder) Messages() []*message.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.msgs)
}

// Wait returns when at least n messages were published, or with ctx.Err().
func (r *Recorder) Wait(ctx context.Context, n int) ([]*message.Message, error) {
	for {
		r.mu.Lock()
		msgs, changed := slices.Clone(r.msgs), r.changed
		r.mu.Unlock()
		if len(msgs) >= n {
			return msgs, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return msgs, ctx.Err()
		}
	}
}

// Describe implements pipeline.Sink.
func (r *Recorder) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "recorder", Name: r.Name}
}

// Delays implements pipeline.Delayer: nothing is ever delivered, and the messages have their due
// times.
func (r *Recorder) Delays() error { return nil }

// Publish implements pipeline.Sink. The messages are copied: what the caller does to them later
// isn't seen.
func (r *Recorder) Publish(ctx context.Context, msgs ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, m := range msgs {
		r.msgs = append(r.msgs, m.Copy())
	}
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

var _ pipeline.Sink = (*Recorder)(nil)
