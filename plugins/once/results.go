package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Result says what became of an effect. As JSON it also has the record, if that is JSON.
type Result struct {
	Kind       string      `json:"kind"`
	Group      string      `json:"group"`
	ID         string      `json:"id"`
	Part       string      `json:"part,omitempty"`
	State      rules.State `json:"state"`             // rules.Success, Failed, Unknown or Cancelled
	Receipt    string      `json:"receipt,omitempty"` // the far side's name of the effect
	Attempts   int         `json:"attempts"`          // sends that count
	Class      string      `json:"class,omitempty"`   // why it failed or is unknown
	Error      string      `json:"error,omitempty"`   // of one that failed or is unknown: the last answer, or the reason of an operator
	AcceptedAt time.Time   `json:"accepted_at"`
	SettledAt  time.Time   `json:"settled_at"`
	Payload    []byte      `json:"-"` // the record as it was accepted
}

const (
	// resultsBatch is how many results are published together.
	resultsBatch = 200
	// resultsLinger is between two batches, so that results that come one after the other are published together.
	resultsLinger = 20 * time.Millisecond
	// resultsPoll is the longest pause between two looks for results that this instance has not made: those of commands, and
	// those that a killed instance has left or that were refused.
	resultsPoll = time.Second
	// finishTimeout bounds the wait of a stop for results.
	finishTimeout = 5 * time.Second
)

// Outcomes of results, as a label.
const (
	resultPublished = "published"
	resultFailed    = "failed"
)

// publishRetry is the delay after results that could not be published.
var publishRetry = pipeline.Backoff{First: time.Second, Max: 10 * time.Second} //nolint:gochecknoglobals // a constant, but Go has none of this type

// relay publishes the results of one kind. Instances share them, so any of them publishes what a killed one has left.
type relay struct {
	worker *worker
	to     pipeline.Sink
	encode func(Result) ([]byte, error)

	woken    chan struct{} // capacity 1: an effect was settled
	draining chan struct{} // closed when no call runs any more
	drain    func()
	ended    chan struct{} // closed when nothing is published any more; nil: the loop was not started
	loop     loop.Group
	away     bool // none of the last records was taken, and perhaps none would be; only the loop uses it
}

func newRelay(w *worker, to pipeline.Sink, encode func(Result) ([]byte, error)) *relay {
	if encode == nil {
		encode = encodeResult
	}
	r := &relay{worker: w, to: to, encode: encode, woken: make(chan struct{}, 1), draining: make(chan struct{})}
	r.drain = sync.OnceFunc(func() { close(r.draining) })
	return r
}

// start starts the loop. Like the calls, it begins when all services have started, and workers.mu guards it.
func (r *relay) start(l *ledger.Ledger) {
	r.ended = make(chan struct{})
	_ = r.loop.Start(context.Background(), func(ctx context.Context) { // it is started once
		defer close(r.ended)
		r.run(ctx, l)
	})
}

func (r *relay) run(ctx context.Context, l *ledger.Ledger) {
	failures := 0
	for {
		last := false
		select {
		case <-r.draining:
			last = true
		default:
		}
		relayed, err := r.publish(ctx, l)
		more := relayed.Taken == resultsBatch
		switch {
		case ctx.Err() != nil, last && (!more || relayed.Published == 0):
			return
		case err != nil && r.away:
			failures++
			r.sleep(ctx, publishRetry.Delay(failures), nil)
		case !more:
			failures = 0
			r.sleep(ctx, min(resultsPoll, r.worker.config.PollInterval), r.woken)
		default:
			failures = 0
		}
		loop.Sleep(ctx, resultsLinger)
	}
}

// sleep returns after d, when early is ready, or when it is time to end.
func (r *relay) sleep(ctx context.Context, d time.Duration, early <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
	case <-r.draining:
	case <-ctx.Done():
	}
}

// finish has the loop publish what is left, since no call runs any more, and ends it. What it can't publish in time, another
// instance or the next start publishes, which is no error.
func (r *relay) finish(ctx context.Context) error {
	if r.ended == nil {
		return nil
	}
	r.drain()
	timer := time.NewTimer(finishTimeout)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return r.stop(ctx)
}

// stop ends the loop.
func (r *relay) stop(ctx context.Context) error {
	if err := r.loop.Stop(ctx); err != nil {
		return fmt.Errorf("once: the results of kind %s are still being published: %w", r.worker.name, err)
	}
	return nil
}

// publish publishes one batch.
func (r *relay) publish(ctx context.Context, l *ledger.Ledger) (relayed ledger.Relayed, err error) {
	relayed, err = l.RelayResults(ctx, r.worker.name, resultsBatch, r.send)
	m := r.worker.plugin.metrics.results
	m.WithLabelValues(r.worker.name, resultPublished).Add(float64(relayed.Published))
	if err != nil && ctx.Err() == nil {
		m.WithLabelValues(r.worker.name, resultFailed).Inc()
		r.worker.warn("results of effects were not published, or are published again, because of an error", err)
	}
	return relayed, err
}

// send publishes results as records. Those that can't be made are named in the error.
func (r *relay) send(ctx context.Context, all []ledger.Result) error {
	errs := make([]error, len(all))
	var msgs []*message.Message
	var at []int
	for i, one := range all {
		m, err := r.record(one)
		if errs[i] = err; m != nil {
			msgs, at = append(msgs, m), append(at, i)
		}
	}
	r.away = false
	if len(msgs) == 0 {
		return pipeline.PublishError(errs)
	}
	err := r.to.Publish(ctx, msgs...)
	failpoint.Hit(failpoint.Told)
	failed := map[int]error{}
	var partial *pipeline.PartialError
	switch {
	case errors.As(err, &partial):
		failed = partial.Failed
	case err != nil && len(msgs) == 1:
		failed[0] = err
	case err != nil:
		r.away = true
		return err
	}
	r.away = len(failed) == len(msgs)
	for n, err := range failed {
		i := at[n]
		errs[i] = fmt.Errorf("once: the result of %s: %w", textOf(all[i].Key), err)
		r.away = r.away && !pipeline.IsPermanent(err) // a record that is refused for good says nothing about the topic
	}
	return pipeline.PublishError(errs)
}

// record returns the record about an end, or nil if there is none.
func (r *relay) record(one ledger.Result) (m *message.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("once: the result of %s: it panicked: %v", textOf(one.Key), p)
		}
	}()
	payload, err := r.encode(Result{
		Kind: one.Kind, Group: one.Group, ID: one.ID, Part: one.Part, State: one.State, Receipt: one.Receipt, Attempts: one.Attempts,
		Class: one.Class, Error: one.Error, AcceptedAt: one.AcceptedAt, SettledAt: one.SettledAt, Payload: one.Payload,
	})
	if err != nil {
		return nil, fmt.Errorf("once: the result of %s: %w", textOf(one.Key), err)
	}
	if payload == nil {
		return nil, nil
	}
	// The same for every publishing of this end, and for no other one.
	m = message.NewMessage(textOf(one.Key)+"@"+strconv.FormatInt(one.SettledAt.UnixMicro(), 10), payload)
	m.Metadata.Set(pipeline.MetaKey, Key{Group: one.Group, ID: one.ID}.String())
	if parent := one.Headers[pipeline.MetaTraceParent]; parent != "" {
		m.Metadata.Set(pipeline.MetaTraceParent, parent)
	}
	return m, nil
}

func encodeResult(r Result) ([]byte, error) {
	whole := struct {
		Result
		Record json.RawMessage `json:"record,omitempty"`
	}{Result: r}
	if json.Valid(r.Payload) {
		whole.Record = r.Payload
	}
	return json.Marshal(whole)
}
