package oncetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// checkRounds is how many histories Check runs.
const checkRounds = 20

// Check runs the kind against a far side that loses answers, refuses, asks for later, panics and executes
// requests whose answer nobody gets. It fails the test if the promise of the kind's Repeat is broken: an effect
// that is done was executed, one that failed was not, and none but those of Always was executed twice. Key and
// Request are called twice with each value, because they must be pure functions. The kind's own Call and
// Lookup are not called.
func Check[T any](t testing.TB, kind once.Kind[T], values ...T) {
	t.Helper()
	require.NotEmpty(t, values, "Check needs a value of the kind")
	for _, v := range values {
		pure(t, kind, v)
	}
	for range checkRounds {
		seed := rand.Uint64()
		if err := history(t, kind, values, rand.New(rand.NewPCG(seed, 0))); err != nil {
			t.Fatalf("history of seed %d: %v", seed, err)
		}
	}
}

func pure[T any](t testing.TB, kind once.Kind[T], v T) {
	t.Helper()
	first, err := kind.Key(v)
	require.NoError(t, err, "Key")
	again, err := kind.Key(v)
	require.NoError(t, err, "Key")
	require.Equal(t, first, again, "Key returns another key for the same value, so it would be done twice")
	require.NoError(t, first.Validate())
	if kind.Request == nil {
		return
	}
	request, err := kind.Request(v)
	require.NoError(t, err, "Request")
	repeated, err := kind.Request(v)
	require.NoError(t, err, "Request")
	require.Equal(t, string(request), string(repeated), "Request returns other bytes for the same value, so a record that comes again would be a conflict")
}

// history enqueues the values and turns the clock until all are settled.
func history[T any](t testing.TB, kind once.Kind[T], values []T, random *rand.Rand) error {
	far := NewFar(kind.Repeat)
	far.choose = func(lookup bool) (Step, bool) { return anyStep(random, lookup) }
	kind.Gate = nil // it is about the kind's own Call
	kind.Call = func(_ context.Context, a once.Attempt[T]) once.Answer { return Call(far, a) }
	if kind.Lookup != nil {
		kind.Lookup = func(_ context.Context, l once.Lookup) once.Answer { return far.Find(l) }
	}
	w := New(t)
	p := &checked[T]{config: once.DefaultKind("")}
	p.config.KeyTTL, p.config.UnderWay, p.config.PollInterval = time.Hour, time.Minute, 5*time.Millisecond
	p.config.MaxRetries = random.IntN(4)
	p.effects = once.New(w.Once, kind, &p.config)
	w.Start(p)
	if _, err := p.effects.Enqueue(t.Context(), append(append([]T{}, values...), values...)...); err != nil {
		return err
	}
	for _, v := range values {
		k, err := kind.Key(v)
		if err != nil {
			return err
		}
		if err := p.follow(t, w, far, kind, k); err != nil {
			return err
		}
	}
	if n := far.Overlaps(); n > 0 {
		return fmt.Errorf("%d calls overlapped with another one for the same effect", n)
	}
	return nil
}

// follow turns the clock until an effect is settled, and compares its state with the book of the far side. It fails when
// nothing has changed for long, and not when a slow machine needs long for all.
func (p *checked[T]) follow(t testing.TB, w *World, far *Far, kind once.Kind[T], k once.Key) error {
	var last once.State
	changed := time.Now()
	for {
		s, err := p.effects.State(t.Context(), k)
		if now := (once.State{State: s.State, Attempts: s.Attempts, Class: s.Class, Error: s.Error}); now != last {
			last, changed = now, time.Now()
		}
		switch {
		case err != nil:
			return err
		case !s.State.Settled() && time.Since(changed) > patience:
			return fmt.Errorf("%s is still %s, %s after its last change", k, s.State, patience)
		case !s.State.Settled():
			if s.NextIn > 0 {
				w.Turn(s.NextIn)
			}
			loop.Sleep(t.Context(), time.Millisecond)
			continue
		}
		times := far.Executed(idempotency(kind, k))
		switch {
		case times > 1 && kind.Repeat != once.Always:
			return fmt.Errorf("%s was executed %d times", k, times)
		case times == 0 && s.State == rules.Success:
			return fmt.Errorf("%s is done in the ledger, and was never executed", k)
		case times > 0 && s.State != rules.Success && s.State != rules.Unknown:
			return fmt.Errorf("%s is %s in the ledger, and was executed", k, s.State)
		}
		return nil
	}
}

func idempotency[T any](kind once.Kind[T], k once.Key) string {
	k.Part = ""
	if kind.Idempotency != nil {
		return kind.Idempotency(k)
	}
	return kind.Name + ":" + k.String()
}

// anyStep returns something that a far side may do, and whether the answer is told.
func anyStep(random *rand.Rand, lookup bool) (Step, bool) {
	unclear := once.Answer{Text: "no answer in time"}
	if lookup {
		switch random.IntN(4) {
		case 0:
			return Step{Answer: unclear}, true
		case 1:
			return Step{Answer: once.Answer{Class: once.Unrecognized, Text: "a proxy answered"}}, true
		}
		return Step{}, false
	}
	switch random.IntN(9) {
	case 0, 1:
		return Step{Execute: true, Answer: unclear}, true
	case 2:
		return Step{Answer: unclear}, true
	case 3:
		return Step{Execute: true, Panic: true}, true
	case 4:
		return Step{Answer: once.Answer{Class: once.Throttled, RetryAfter: time.Second}}, true
	case 5:
		return Step{Answer: once.Answer{Class: once.Retry}}, true
	case 6:
		return Step{Execute: true, Answer: once.Answer{Class: once.Unrecognized, Text: "a proxy answered"}}, true
	}
	return Step{Execute: true}, false
}

// checked is a plugin with one kind.
type checked[T any] struct {
	config  once.KindConfig
	effects *once.Effects[T]
}

func (*checked[T]) Name() string                          { return "checked" }
func (p *checked[T]) Register(r *pipeline.Registry) error { return p.effects.Register(r) }
