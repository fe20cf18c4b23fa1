package operate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// CheckLimit is how long Diagnose waits for a connection, and then for each check.
const CheckLimit = 5 * time.Second

// Examined is what a plugin offers (pipeline.Registry.Offer) that can tell whether something outside
// of its own code, such as its server, is in order.
type Examined interface {
	// Examinations returns what can be examined. It is called after all plugins were registered, and
	// opens nothing.
	Examinations() []Examination
}

// Examination is what can be examined at one place, such as a server.
type Examination struct {
	// Place begins the names of its checks, such as redis. When several examinations have one place,
	// only the first one counts, because two stores may be in one database.
	Place string
	// Open connects to the place and returns what to examine there. closeIt is called once all of
	// that has ended, and may be nil. An error is the only check of the place; one that wraps
	// pipeline.ErrUnavailable says that the server is away. Services need not be started.
	Open func(context.Context) (list []Examine, closeIt func(), err error)
	// Remedy and Runbook are those of the check of an Open that failed.
	Remedy, Runbook string
}

// Examine reads something that should be in order.
type Examine struct {
	// What is examined, such as eviction. With the place before it, it is the name of the check.
	What string
	// Read returns one check, or several. An empty name becomes that of the Examine. An error is a
	// check that failed.
	Read func(context.Context) ([]Check, error)
}

// Diagnosis is what Diagnose has found.
type Diagnosis struct {
	OK       int      `json:"ok"`       // checks that are in order
	Warnings int      `json:"warnings"` // checks that say what should be changed
	Failures int      `json:"failures"` // checks that failed
	Away     []string `json:"away"`     // places that do not answer; each has a failure
	Checks   []Check  `json:"checks"`   // by place
}

// Examinations returns what the plugins of a registry can examine, each place once.
func Examinations(reg *pipeline.Registry) []Examination {
	var list []Examination
	for _, offer := range pipeline.Offers[Examined](reg) {
		for _, e := range examinationsOf(offer) {
			if !slices.ContainsFunc(list, func(other Examination) bool { return other.Place == e.Place }) {
				list = append(list, e)
			}
		}
	}
	return list
}

// examinationsOf returns what a plugin can examine. A panic of its method becomes a place that can't
// be opened, so that the other plugins are examined all the same.
func examinationsOf(offer Examined) (list []Examination) {
	err := recovered(func() error {
		list = offer.Examinations()
		return nil
	})
	if err == nil {
		return list
	}
	return []Examination{{Place: nameOf(offer), Remedy: remedyPanic, Open: func(context.Context) ([]Examine, func(), error) {
		return nil, nil, err
	}}}
}

// Diagnose examines all places at once, and all that is examined at a place. What gives no answer
// within limit fails and holds nothing else up, and so does what panics. Diagnose does not wait for it, so it may go on in the
// background until it ends by itself. progress is called with the number of places that are done,
// from several goroutines, and may be nil.
func Diagnose(ctx context.Context, places []Examination, limit time.Duration, progress func(done int)) Diagnosis {
	found := make([]findings, len(places))
	var mu sync.Mutex
	done := 0
	var examining sync.WaitGroup
	for i, place := range places {
		examining.Go(func() {
			found[i] = place.examine(ctx, limit)
			mu.Lock()
			defer mu.Unlock()
			if done++; progress != nil {
				progress(done)
			}
		})
	}
	examining.Wait()
	d := Diagnosis{Away: []string{}, Checks: []Check{}}
	for i, f := range found {
		if f.away {
			d.Away = append(d.Away, places[i].Place)
		}
		d.Checks = append(d.Checks, f.checks...)
	}
	for _, c := range d.Checks {
		switch c.Level {
		case OK:
			d.OK++
		case Warn:
			d.Warnings++
		default:
			d.Failures++
		}
	}
	return d
}

// Summary is the last line for people, such as "14 ok, 2 warnings, 1 failure".
func (d Diagnosis) Summary() string {
	count := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	return fmt.Sprintf("%d ok, %s, %s", d.OK, count(d.Warnings, "warning"), count(d.Failures, "failure"))
}

// findings are what was found at one place.
type findings struct {
	checks []Check
	away   bool
}

// opened is the result of Examination.Open.
type opened struct {
	list    []Examine
	closeIt func()
}

func (o opened) close() {
	if o.closeIt != nil {
		o.closeIt()
	}
}

func (e Examination) examine(ctx context.Context, limit time.Duration) findings {
	place, err := within(ctx, limit, func(ctx context.Context) (opened, error) {
		list, closeIt, err := e.Open(ctx)
		return opened{list, closeIt}, err
	}, opened.close)
	if err != nil {
		failed := failedCheck(e.Place, err)
		if failed.Remedy == "" {
			failed.Remedy, failed.Runbook = e.Remedy, e.Runbook
		}
		return findings{[]Check{failed}, away(err)}
	}
	results := make([]findings, len(place.list))
	var waiting, reading sync.WaitGroup // for a result; for the end of what is late
	for i, one := range place.list {
		name := e.Place + " " + one.What
		reading.Add(1)
		waiting.Go(func() {
			checks, err := within(ctx, limit, func(ctx context.Context) ([]Check, error) {
				defer reading.Done()
				return one.Read(ctx)
			}, nil)
			if err != nil {
				checks = append(slices.Clone(checks), failedCheck(name, err))
			}
			for n := range checks {
				if checks[n].Name == "" {
					checks[n].Name = name
				}
			}
			results[i] = findings{checks, away(err)}
		})
	}
	waiting.Wait()
	_, err = within(ctx, limit, func(context.Context) (struct{}, error) {
		reading.Wait()
		place.close()
		return struct{}{}, nil
	}, nil)
	var all findings
	if _, panicked := errors.AsType[*panicError](err); panicked {
		all.checks = append(all.checks, failedCheck(e.Place, fmt.Errorf("close: %w", err)))
	}
	for _, r := range results {
		all.checks, all.away = append(all.checks, r.checks...), all.away || r.away
	}
	return all
}

// noAnswerError says that something took longer than its limit.
type noAnswerError struct{ limit time.Duration }

func (e noAnswerError) Error() string { return fmt.Sprintf("no answer within %s", e.limit) }
func (noAnswerError) Unwrap() error   { return pipeline.ErrUnavailable }

// panicError says that a function of a plugin has panicked.
type panicError struct {
	value any
	where string
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v, in %s", e.value, e.where) }

const remedyPanic = "report it to the author of the plugin, because the check itself is wrong"

// recovered calls do, and returns its error or its panic.
func recovered(do func() error) (err error) {
	defer catch(&err)
	return do()
}

// catch is deferred by a function that returns a panic as its error.
func catch(err *error) {
	if v := recover(); v != nil { //nolint:revive // its callers defer it
		*err = &panicError{v, panicked()}
	}
}

// panicked returns the function that has panicked, with its file and line. It is called by catch.
func panicked() string {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
	for begun := false; ; {
		f, more := frames.Next()
		switch {
		case f.Function == "runtime.gopanic":
			begun = true
		case begun && !strings.HasPrefix(f.Function, "runtime."):
			return fmt.Sprintf("%s (%s:%d)", f.Function, filepath.Base(f.File), f.Line)
		}
		if !more {
			return "an unknown function"
		}
	}
}

// grace is the part of a limit by which a result may be late. The reason of a client that gives up at
// the limit, such as a refused connection, says more than that there was no answer.
const grace = 10

// within returns what do returns, or a noAnswerError when its context has ended and do goes on all
// the same. Then what do returns without an error is given to late, unless that is nil.
func within[T any](ctx context.Context, limit time.Duration, do func(context.Context) (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var decided atomic.Bool // between a result and the end of the wait for it
	ended := make(chan result, 1)
	bounded, cancel := context.WithTimeout(ctx, limit)
	go func() {
		defer cancel()
		var value T
		err := recovered(func() (err error) {
			value, err = do(bounded)
			return err
		})
		switch {
		case decided.CompareAndSwap(false, true):
			ended <- result{value, err}
		case err == nil && late != nil:
			_ = recovered(func() error { late(value); return nil }) // nobody waits for it any more
		}
	}()
	wait := time.NewTimer(limit + limit/grace)
	defer wait.Stop()
	var r result
	select {
	case r = <-ended:
	case <-wait.C:
		if decided.CompareAndSwap(false, true) {
			r.err = noAnswerError{limit}
		} else {
			r = <-ended
		}
	}
	if errors.Is(r.err, context.DeadlineExceeded) && ctx.Err() == nil && !away(r.err) {
		r.err = noAnswerError{limit}
	}
	return r.value, r.err
}

func away(err error) bool { return errors.Is(err, pipeline.ErrUnavailable) }

// Remedied is an error of an Examine.Read whose check says what to do.
type Remedied interface {
	error
	Remedy() string
}

func failedCheck(name string, err error) Check {
	c := Check{Name: name, Level: Fail, Text: logs.OneLine(err.Error())}
	if _, ok := errors.AsType[*panicError](err); ok {
		c.Remedy = remedyPanic
	}
	if r, ok := errors.AsType[Remedied](err); ok {
		c.Remedy = r.Remedy()
	}
	return c
}
