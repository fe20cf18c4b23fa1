package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// row is one line of the table.
type row struct {
	key     string
	what    string
	against string // the peer, or –
	unit    string // × for a ratio
	goal    float64
	atMost  bool   // the figure must not exceed the goal; otherwise it must reach it
	why     string // the reason if a quiet run falls short
	tried   string // what was tried, in Markdown; it follows the table
}

// comparison measures one or more rows together. measure reports a figure of each by trial.figure.
type comparison struct {
	name    string
	runs    int
	measure func(ctx context.Context, t *trial)
	rows    []row
}

func (c comparison) keys() (keys []string) {
	for _, r := range c.rows {
		keys = append(keys, r.key)
	}
	return keys
}

// pair is one measurement of a row: the product's figure and its peer's in the same run. Without a
// peer the latter is 0.
type pair struct{ ours, peer float64 }

func (p pair) figure() float64 {
	if p.peer == 0 {
		return p.ours
	}
	return p.ours / p.peer
}

// trial is one run of a comparison. Like a test, it ends at the first check that fails, and then
// calls what was passed to cleanup.
type trial struct {
	*environment
	sizes
	page    string
	figures map[string]pair
	ends    []func()
}

// figure reports the figure of a row, and that of its peer if it has one.
func (t *trial) figure(key string, ours float64, peer ...float64) {
	t.figures[key] = pair{ours, append(peer, 0)[0]}
}

// cleanup registers a function that ends what was started. The last one is called first.
func (t *trial) cleanup(end func()) { t.ends = append(t.ends, end) }

// part runs one of several parts of a trial with a clean-up of its own.
func (t *trial) part(run func(t *trial)) {
	part := *t
	part.ends = nil
	defer func() {
		for _, end := range slices.Backward(part.ends) {
			end()
		}
	}()
	run(&part)
}

// outcome is all runs of a comparison.
type outcome struct {
	comparison
	pairs map[string][]pair // by row
	err   error
}

// compare runs a comparison several times. Each run measures both sides.
func (e *environment) compare(ctx context.Context, c comparison, s sizes, runs int) outcome {
	o := outcome{comparison: c, pairs: map[string][]pair{}}
	for i := range runs {
		began := time.Now()
		e.logf("\n%s, run %d of %d", c.name, i+1, runs)
		t := &trial{environment: e, sizes: s, page: c.page(), figures: map[string]pair{}}
		if err := try(func() { t.part(func(t *trial) { c.measure(ctx, t) }) }); err != nil {
			o.err = fmt.Errorf("%s: %w", c.name, err)
			e.logf("  %v", o.err)
			return o
		}
		for _, r := range c.rows {
			p, ok := t.figures[r.key]
			if !ok {
				o.err = fmt.Errorf("%s: the run has no figure for %s", c.name, r.key)
				return o
			}
			o.pairs[r.key] = append(o.pairs[r.key], p)
			figures, spread, _ := o.result(r)
			e.logf("  %s: %s → %s", r.key, figures, spread)
		}
		e.logf("  took %s", time.Since(began).Round(time.Second))
	}
	return o
}

func (e *environment) logf(format string, args ...any) { fmt.Fprintf(e.log, format+"\n", args...) }

// trialError is what check, must and expect end a trial with.
type trialError struct{ error }

func (e trialError) Unwrap() error { return e.error }

// check ends the trial if there is an error. Another goroutine than that of the trial calls it
// within try.
func check(errs ...error) { failAt(errors.Join(errs...)) }

// must returns the value, or ends the trial as check does.
func must[V any](value V, err error) V {
	failAt(err)
	return value
}

// failAt names the line that called its caller, unless the error names one.
func failAt(err error) {
	if err == nil {
		return
	}
	if named := (trialError{}); !errors.As(err, &named) {
		_, file, line, _ := runtime.Caller(2)
		err = fmt.Errorf("%s:%d: %w", filepath.Base(file), line, err)
	}
	panic(trialError{err})
}

// expect ends the trial, whose figures do not count, unless ok.
func expect(ok bool, format string, args ...any) {
	if !ok {
		panic(trialError{fmt.Errorf("refused: "+format, args...)})
	}
}

// try returns the error with which check, must or expect ended f.
func try(f func()) (err error) {
	defer func() {
		if value := recover(); value != nil {
			failed, ok := value.(trialError)
			if !ok {
				panic(value)
			}
			err = failed
		}
	}()
	f()
	return nil
}

// together runs f n times side by side. The first that fails ends the context of the others.
func together(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	group, ctx := errgroup.WithContext(ctx)
	for i := range n {
		group.Go(func() error { return try(func() { f(ctx, i) }) })
	}
	check(group.Wait())
}

// while runs body beside loops, which end with it. A loop that fails ends body.
func while(ctx context.Context, body func(ctx context.Context), loops ...func(ctx context.Context)) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range loops {
		group.Go(func() error {
			if err := try(func() { run(ctx) }); ctx.Err() == nil {
				return err
			}
			return nil // the end has interrupted it
		})
	}
	err := try(func() { body(ctx) })
	stop()
	check(cmp.Or(group.Wait(), err))
}

// inRandomOrder calls each function once.
func inRandomOrder(functions ...func()) {
	for _, i := range rand.Perm(len(functions)) {
		functions[i]()
	}
}

// until repeats a check until it is true. It fails when ctx ends.
func until(ctx context.Context, every time.Duration, done func() bool) {
	for !done() {
		check(sleep(ctx, every))
	}
}

// within waits with a time limit, and with a reason for its failure.
func within(ctx context.Context, limit time.Duration, reason string, wait func(ctx context.Context)) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("refused: "+reason))
	defer cancel()
	wait(ctx)
}

func sleep(ctx context.Context, d time.Duration) error {
	if !loop.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}

// quantile returns the value below which that share of the values is, 0 without values.
func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(share*float64(len(sorted)-1))]
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}

// millis returns a duration in ms.
func millis(d time.Duration) float64 { return d.Seconds() * 1000 }

// micros returns at least 0.1 µs, because a short run may use less CPU time than a tick of the clock.
func micros(d time.Duration) float64 { return max(0.1, float64(d)/float64(time.Microsecond)) }
