package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// maxFailuresInARow is the number of consecutive failures that end a command: the cause is then not
// the dead letters but the backend.
const maxFailuresInARow = 3

// act runs a command that does an action to each selected dead letter. states are those in which
// the action changes a dead letter. start starts what the action needs.
func (e Env) act(h *app.Host, cmd *cobra.Command, f *actionFlags, states []store.State, start func(*session, context.Context, []store.Target) error, of func(*session) action) error {
	return e.run(h, cmd, func(ctx context.Context, s *session) error {
		if err := f.check(ctx, s.store); err != nil {
			return err
		}
		targets, err := s.store.Targets(ctx, f.Filter)
		if err != nil {
			return err
		}
		if f.dry {
			if err := s.replayer.StartPreviews(ctx, targets); err != nil {
				return err
			}
			return s.dryRun(ctx, f, states, of(s))
		}
		if err := start(s, ctx, targets); err != nil {
			return err
		}
		return s.apply(ctx, f, of(s))
	})
}

// action is what a command does to each dead letter.
type action interface {
	// apply does it. The error is a *store.HeldError while a replay holds the dead letter.
	apply(ctx context.Context, id string) (Line, error)
	// preview says what apply would do.
	preview(ctx context.Context, d store.DeadLetter) Line
}

// actionFlags are the flags of replay and discard.
type actionFlags struct {
	filterFlags
	all   bool
	dry   bool
	rate  string
	limit int
	by    app.By

	perSecond float64 // 0: no limit
}

func (f *actionFlags) add(cmd *cobra.Command) {
	f.filterFlags.add(cmd)
	f.by.Flags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "all that wait")
	flags.BoolVar(&f.dry, "dry-run", false, "only say which dead letters match, and what would be done to each")
	flags.StringVar(&f.rate, "rate", "", "largest number of dead letters per second, such as `5/s`; also 30/m, 100/h")
	flags.IntVar(&f.limit, "limit", 0, "largest number of dead letters, oldest first")
}

// parse reads arguments and flags. Without ids the command selects the given states.
func (f *actionFlags) parse(args []string, states []store.State) error {
	if err := f.filterFlags.parse(); err != nil {
		return err
	}
	filtered := slices.ContainsFunc(f.fields(), func(field filterField) bool { return *field.to != "" })
	given := 0
	for _, b := range []bool{len(args) > 0, filtered, f.all} {
		if b {
			given++
		}
	}
	if given != 1 {
		return app.Usage("select dead letters with either ids, or filters, or --all")
	}
	f.IDs = slices.Compact(slices.Sorted(slices.Values(args)))
	if len(args) == 0 {
		f.States = states
	}
	if f.limit < 0 {
		return app.Usage("--limit must be >= 0, got %d", f.limit)
	}
	var err error
	if f.perSecond, err = parseRate(f.rate); err != nil || f.dry {
		return err
	}
	return f.by.Check()
}

// parseRate returns a number per second; 0 for no limit.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	number, unit, seconds := text, "s", map[string]float64{"s": 1, "m": 60, "h": 3600}
	if i := len(text) - 2; i > 0 && text[i] == '/' {
		number, unit = text[:i], text[i+1:]
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || seconds[unit] == 0 || !(n > 0) || n > 1e6 {
		return 0, app.Usage("--rate must be a number of dead letters per second, minute or hour, such as 5/s, 30/m or 100/h, got %q", text)
	}
	return n / seconds[unit], nil
}

// selected returns the ids that a command works on, oldest first: the given ones in all states, or
// those of the filter.
func (s *session) selected(ctx context.Context, f *actionFlags) iter.Seq2[string, error] {
	if len(f.IDs) == 0 {
		return s.store.Walk(ctx, f.Filter)
	}
	return func(yield func(string, error) bool) {
		for _, id := range f.IDs {
			if !yield(id, nil) {
				return
			}
		}
	}
}

// dryRun reports what the action would do. states are those in which it changes a dead letter.
func (s *session) dryRun(ctx context.Context, f *actionFlags, states []store.State, a action) error {
	report := Report{DryRun: true, DeadLetters: []Line{}}
	for id, err := range s.selected(ctx, f) {
		if err != nil {
			return err
		}
		if f.limit > 0 && report.Selected == f.limit {
			break
		}
		report.Selected++
		d, _, err := s.store.Get(ctx, id)
		if err == nil && !slices.Contains(states, d.State) {
			err = &store.StateError{ID: id, State: d.State, Generation: d.Generation}
		}
		line, unchanged := unchangedLine(id, err)
		switch {
		case unchanged:
		case err != nil:
			return err
		default:
			line = a.preview(ctx, d)
			line.Resumed = d.State == store.Replaying
		}
		line.ID, line.About, line.Class = id, d.Subject, d.Class
		report.add(line)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return s.show(&report, report.write)
}

// apply does the action to each selected dead letter, and reports.
func (s *session) apply(ctx context.Context, f *actionFlags, a action) error {
	total, err := s.store.Count(ctx, f.Filter)
	if err != nil {
		return err
	}
	if f.limit > 0 {
		total = min(total, int64(f.limit))
	}
	b := &batch{session: s, action: a, perSecond: f.perSecond, report: Report{DeadLetters: []Line{}}, bar: s.Progress(total, "dead letters")}
	err = b.run(ctx, f)
	b.bar.Done()
	if err == nil || b.report.Selected > 0 || s.JSON(s.cmd) {
		if writeErr := s.show(&b.report, b.report.write); err == nil {
			err = writeErr
		}
	}
	if err == nil && b.report.incomplete() {
		err = &app.ExitError{Code: app.ExitBad, Err: errors.New("some of the selected dead letters were refused, failed or skipped")}
	}
	return err
}

// batch is the work of one command.
type batch struct {
	*session
	action    action
	perSecond float64
	report    Report
	bar       *app.Progress

	next   time.Time // when the rate allows the next dead letter
	inARow int       // consecutive failures
	held   []string  // ids that another replay held
}

// run works on the selected dead letters. Those that another replay holds come last, when it is
// over.
func (b *batch) run(ctx context.Context, f *actionFlags) error {
	for id, err := range b.selected(ctx, f) {
		if err != nil {
			return err
		}
		if f.limit > 0 && b.report.Selected == f.limit {
			break
		}
		b.report.Selected++
		if err := b.one(ctx, id); err != nil {
			return err
		}
	}
	if len(b.held) == 0 {
		return nil
	}
	fmt.Fprintf(b.Err(), "Waiting for %s of another replay.\n", app.Plural(int64(len(b.held)), "dead letter"))
	for _, id := range b.held {
		if err := b.store.AwaitRelease(ctx, id); err != nil {
			return err
		}
		line, err := b.action.apply(ctx, id)
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			line, err = Line{ID: id, Result: resultSkipped, Reason: held.Error()}, nil
		}
		if err == nil {
			err = b.add(ctx, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// one works on a dead letter, at the allowed rate, or keeps its id when another replay holds it.
func (b *batch) one(ctx context.Context, id string) error {
	if err := b.pace(ctx); err != nil {
		return err
	}
	line, err := b.action.apply(ctx, id)
	if _, held := errors.AsType[*store.HeldError](err); held {
		b.held = append(b.held, id)
		return ctx.Err()
	}
	if err != nil {
		return err
	}
	return b.add(ctx, line)
}

func (b *batch) add(ctx context.Context, line Line) error {
	b.report.add(line)
	b.bar.Set(int64(b.report.Selected - len(b.held)))
	if line.Result != store.OutcomeFailed {
		b.inARow = 0
	} else if b.inARow++; b.inARow == maxFailuresInARow {
		return fmt.Errorf("%d consecutive dead letters failed, the last one with: %s", b.inARow, line.Reason)
	}
	return ctx.Err()
}

// pace waits until the rate allows the next dead letter.
func (b *batch) pace(ctx context.Context) error {
	if b.perSecond <= 0 {
		return nil
	}
	if !loop.Sleep(ctx, time.Until(b.next)) {
		return ctx.Err()
	}
	b.next = time.Now().Add(time.Duration(float64(time.Second) / b.perSecond))
	return nil
}

// unchangedLine returns the line of a dead letter that a command does not change, for an error of
// the store.
func unchangedLine(id string, err error) (Line, bool) {
	state, ok := errors.AsType[*store.StateError](err)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Line{ID: id, Result: resultSkipped, Reason: store.ErrNotFound.Error()}, true
	case !ok:
		return Line{}, false
	case state.State == store.Replayed:
		return Line{ID: id, Result: store.OutcomeAlready, Reason: fmt.Sprintf("replayed in generation %d", state.Generation)}, true
	case state.State == store.Parked:
		return Line{ID: id, Result: resultSkipped, Reason: "it failed again after a replay; --parked replays it again"}, true
	}
	return Line{ID: id, Result: resultSkipped, Reason: "it is " + string(state.State)}, true
}
