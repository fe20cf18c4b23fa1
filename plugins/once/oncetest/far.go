package oncetest

import (
	"context"
	"encoding/csv"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/once"
)

// Step is what the far side does with one request or lookup.
type Step struct {
	Execute bool // it executes the request, unless it knows its key; a lookup executes nothing
	Answer  once.Answer
	Panic   bool // the call panics after that
}

// Far is a far side in memory. It executes requests as its Repeat says, counts executions, and answers as it
// is told to. It is safe for concurrent use.
type Far struct {
	repeat once.Repeat

	mu       sync.Mutex
	steps    []Step
	choose   func(lookup bool) (Step, bool)
	executed map[string]int
	calls    map[string]int // running
	overlap  int
}

// NewFar returns a far side that executes each request and answers with its receipt.
func NewFar(r once.Repeat) *Far {
	return &Far{repeat: r, executed: map[string]int{}, calls: map[string]int{}}
}

// Next sets what happens to the next requests and lookups, in their order.
func (f *Far) Next(steps ...Step) *Far {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, steps...)
	return f
}

// Executed returns how often the effect with the idempotency key was executed.
func (f *Far) Executed(idempotency string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.executed[idempotency]
}

// WriteBook writes what the far side has executed, as a book for once reconcile.
func (f *Far) WriteBook(to io.Writer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	lines := [][]string{{"key", "receipt", "times"}}
	for _, key := range slices.Sorted(maps.Keys(f.executed)) {
		lines = append(lines, []string{key, receiptOf(key), strconv.Itoa(f.executed[key])})
	}
	return csv.NewWriter(to).WriteAll(lines)
}

func receiptOf(key string) string { return "receipt of " + key }

// Overlaps returns how many calls began while another one for the same effect was running.
func (f *Far) Overlaps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.overlap
}

// Call is for Kind.Call.
func Call[T any](f *Far, a once.Attempt[T]) once.Answer { return f.call(a.Idempotency, false) }

// Find is for Kind.Lookup.
func (f *Far) Find(l once.Lookup) once.Answer { return f.call(l.Idempotency, true) }

func (f *Far) call(key string, lookup bool) once.Answer {
	step := f.begin(key, lookup)
	loop.Sleep(context.Background(), time.Millisecond) // so that calls which may overlap do
	f.mu.Lock()
	f.calls[key]--
	f.mu.Unlock()
	if step.Panic {
		panic("the far side panicked, as it was told to")
	}
	return step.Answer
}

func (f *Far) begin(key string, lookup bool) Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls[key]++; f.calls[key] > 1 {
		f.overlap++
	}
	step, told := f.next(lookup)
	if step.Execute && !lookup && (f.repeat != once.ByKey || f.executed[key] == 0) {
		f.executed[key]++
	}
	switch {
	case told && !(lookup && step.Answer.Class == once.Done):
	case f.executed[key] > 0:
		step.Answer = once.IsDone(receiptOf(key))
	default:
		step.Answer = once.Answer{Class: once.NotDone}
	}
	return step
}

// next returns what to do, and whether the answer was told, too.
func (f *Far) next(lookup bool) (s Step, told bool) {
	if f.choose != nil {
		return f.choose(lookup)
	}
	if len(f.steps) > 0 {
		s, f.steps = f.steps[0], f.steps[1:]
		return s, true
	}
	return Step{Execute: true}, false
}
