package cli

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/pace"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// maxFailuresInARow is the number of consecutive failures that end an action: the cause is then not
// the dead letters but the backend.
const maxFailuresInARow = 3

// Actions returns the actions "deadletter replay" and "deadletter discard".
func (e Deps) Actions() []operate.Action {
	return []operate.Action{e.replayAction(), e.discardAction()}
}

// step is what an action does to each dead letter.
type step interface {
	// startWork starts what the step needs.
	startWork(ctx context.Context, targets []store.Target) error
	// apply does it. The error is a *store.HeldError while a replay holds the dead letter.
	apply(ctx context.Context, id string) (Line, error)
	// preview says what apply would do.
	preview(ctx context.Context, d store.DeadLetter) Line
}

// action returns an action without its text. states are those in which a step changes a dead letter.
func (e Deps) action(about operate.About, states func(operate.Input) []store.State, of func(*work, operate.Input) step) operate.Action {
	about.Validate = func(in operate.Input) error {
		_, err := readWork(in, states(in))
		return err
	}
	about.Register = e.Register
	run := func(ctx context.Context, reg *pipeline.Registry, in operate.Input, use *operate.Use) (a operate.Answer, err error) {
		w, err := readWork(in, states(in))
		if err != nil {
			return a, err
		}
		err = e.with(ctx, reg, func(s *store.Store, replayer Replayer) (err error) {
			w.store, w.replayer = s, replayer
			if err := w.check(ctx, s); err != nil {
				return err
			}
			targets, err := s.Targets(ctx, w.Filter)
			if err != nil {
				return err
			}
			if use == nil {
				a, err = w.previewAll(ctx, targets, of(w, in))
				return err
			}
			w.use = *use
			a, err = w.applyAll(ctx, targets, of(w, in))
			return err
		})
		return a, err
	}
	return operate.Action{
		About: about, Danger: operate.Irreversible, Role: operate.Operator, Audited: true,
		Preview: func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			return run(ctx, reg, in, nil)
		},
		Do: func(ctx context.Context, reg *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return run(ctx, reg, in, &use)
		},
	}
}

// actionFields are the fields of both actions, with those of one of them.
func actionFields(own ...operate.Field) []operate.Field {
	fields := []operate.Field{{Name: "id", Type: operate.List, Arguments: true, Help: "the `id` of a dead letter, or its first characters"}}
	for _, f := range (&filterFlags{}).fields() {
		fields = append(fields, f.Field)
	}
	fields = append(fields,
		operate.Field{Name: "all", Type: operate.Switch, Help: "all that wait"},
		operate.Field{Name: "rate", Help: "largest number of dead letters per second, such as `5/s`; also 30/m, 100/h"},
		operate.Field{Name: "limit", Type: operate.Number, Help: "largest number of dead letters, oldest first"},
	)
	return append(fields, own...)
}

// work is one use of an action: what it selects, and how fast it works.
type work struct {
	filterFlags
	states []store.State // in which the step changes a dead letter
	limit  int           // 0: none
	pace   pace.Pace
	use    operate.Use

	store    *store.Store
	replayer Replayer
	report   Report
	total    int64
	inARow   int      // consecutive failures
	held     []string // ids that another replay held
}

// by is the person who is recorded.
func (w *work) by() store.By { return store.By{Who: w.use.Who, Why: w.use.Why, Use: w.use.ID} }

// readWork reads the fields. Without ids the work selects the given states.
func readWork(in operate.Input, states []store.State) (*work, error) {
	w := &work{states: states, limit: in.Number("limit"), report: Report{DeadLetters: []Line{}}}
	if err := w.takeInput(in); err != nil {
		return nil, err
	}
	filtered := slices.ContainsFunc(w.fields(), func(field filterField) bool { return *field.to != "" })
	given := 0
	for _, b := range []bool{len(in.List("id")) > 0, filtered, in.Switch("all")} {
		if b {
			given++
		}
	}
	if given != 1 {
		return nil, app.Usage("select dead letters with either ids, or filters, or --all")
	}
	if w.IDs = slices.Compact(slices.Sorted(slices.Values(in.List("id")))); len(w.IDs) == 0 {
		w.States = states
	}
	if w.limit < 0 {
		return nil, app.Usage("--limit must be >= 0, got %d", w.limit)
	}
	var err error
	w.pace, err = pace.Parse(in.Text("rate"))
	return w, err
}

// selected returns the ids of the work, oldest first: the given ones in all states, or those of the
// filter.
func (w *work) selected(ctx context.Context) iter.Seq2[string, error] {
	if len(w.IDs) == 0 {
		return w.store.Walk(ctx, w.Filter)
	}
	return func(yield func(string, error) bool) {
		for _, id := range w.IDs {
			if !yield(id, nil) {
				return
			}
		}
	}
}

// each calls do with the selected ids, up to the limit.
func (w *work) each(ctx context.Context, do func(id string) error) error {
	for id, err := range w.selected(ctx) {
		if err != nil {
			return err
		}
		if w.limit > 0 && w.report.Selected == w.limit {
			break
		}
		w.report.Selected++
		if err := do(id); err != nil {
			return err
		}
	}
	return nil
}

// previewAll reports what the steps would do.
func (w *work) previewAll(ctx context.Context, targets []store.Target, s step) (operate.Answer, error) {
	if err := w.replayer.StartPreviews(ctx, targets); err != nil {
		return operate.Answer{}, err
	}
	var err error
	if w.report.Matching, err = w.store.Count(ctx, w.Filter); err != nil {
		return operate.Answer{}, err
	}
	w.report.DryRun = true
	topics, found := map[string]int{}, fates{}
	err = w.each(ctx, func(id string) error {
		d, _, err := w.store.Get(ctx, id)
		if err == nil && !slices.Contains(w.states, d.State) {
			err = &store.StateError{ID: id, State: d.State, Generation: d.Generation}
		}
		line, unchanged := unchangedLine(id, err)
		switch {
		case unchanged:
		case err != nil:
			return err
		default:
			line = s.preview(ctx, d)
			line.Resumed = d.State == store.Replaying
		}
		if d.ID != "" {
			topics[topicOf(d.Subject)]++
			found.add(d, line)
		}
		line.ID, line.About, line.Class = id, d.Subject, d.Class
		w.report.addLine(line)
		return ctx.Err()
	})
	if err != nil {
		return operate.Answer{}, err
	}
	w.report.countTopics(topics)
	w.report.Would = found.list()
	return w.report.answer(false), nil
}

// applyAll does the steps, and reports.
func (w *work) applyAll(ctx context.Context, targets []store.Target, s step) (operate.Answer, error) {
	if err := s.startWork(ctx, targets); err != nil {
		return operate.Answer{}, err
	}
	var err error
	if w.total, err = w.store.Count(ctx, w.Filter); err != nil {
		return operate.Answer{}, err
	}
	if w.limit > 0 {
		w.total = min(w.total, int64(w.limit))
	}
	w.use.Report(0, w.total)
	err = w.each(ctx, func(id string) error { return w.one(ctx, id, s) })
	if err == nil {
		err = w.thoseHeld(ctx, s)
	}
	for _, id := range w.held { // after an error: they were selected
		w.report.addLine(Line{ID: id, Result: resultSkipped, Reason: "another replay holds it"})
	}
	answer := w.report.answer(err != nil)
	if err == nil && w.report.incomplete() {
		err = &app.ExitError{Code: app.ExitBad, Err: errors.New("some of the selected dead letters were refused, failed or skipped")}
	}
	return answer, err
}

// thoseHeld works on those that another replay held, when it is over.
func (w *work) thoseHeld(ctx context.Context, s step) error {
	if len(w.held) == 0 {
		return nil
	}
	w.use.Tell("Waiting for " + app.Plural(int64(len(w.held)), "dead letter") + " of another replay.")
	for len(w.held) > 0 {
		id := w.held[0]
		if err := w.store.AwaitRelease(ctx, id); err != nil {
			return err
		}
		line, err := s.apply(ctx, id)
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			line, err = Line{ID: id, Result: resultSkipped, Reason: held.Error()}, nil
		}
		w.held = w.held[1:]
		if err != nil {
			w.report.addLine(Line{ID: id, Result: store.OutcomeFailed, Reason: err.Error()})
			return err
		}
		if err := w.addLine(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// one works on a dead letter, at the allowed rate, or keeps its id when another replay holds it.
func (w *work) one(ctx context.Context, id string, s step) error {
	if err := w.pace.Wait(ctx); err != nil {
		w.report.Selected-- // nothing was begun
		return err
	}
	line, err := s.apply(ctx, id)
	if _, held := errors.AsType[*store.HeldError](err); held {
		w.held = append(w.held, id)
		return ctx.Err()
	}
	if err != nil {
		w.report.addLine(Line{ID: id, Result: store.OutcomeFailed, Reason: err.Error()})
		return err
	}
	return w.addLine(ctx, line)
}

func (w *work) addLine(ctx context.Context, line Line) error {
	w.report.addLine(line)
	w.use.Report(int64(w.report.Selected-len(w.held)), w.total)
	if line.Result != store.OutcomeFailed {
		w.inARow = 0
	} else if w.inARow++; w.inARow == maxFailuresInARow {
		return errors.New(strconv.Itoa(w.inARow) + " consecutive dead letters failed, the last one with: " + line.Reason)
	}
	return ctx.Err()
}

// unchangedLine returns the line of a dead letter that an action does not change, for an error of the
// store.
func unchangedLine(id string, err error) (Line, bool) {
	state, ok := errors.AsType[*store.StateError](err)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Line{ID: id, Result: resultSkipped, Reason: store.ErrNotFound.Error()}, true
	case !ok:
		return Line{}, false
	case state.Used:
		return Line{ID: id, Result: store.OutcomeAlready, Reason: "this action has done it before"}, true
	case state.State == store.Replayed:
		return Line{ID: id, Result: store.OutcomeAlready, Reason: "replayed in generation " + strconv.Itoa(state.Generation)}, true
	case state.State == store.Parked:
		return Line{ID: id, Result: resultSkipped, Reason: "it failed again after a replay; --parked replays it again"}, true
	}
	return Line{ID: id, Result: resultSkipped, Reason: "it is " + string(state.State)}, true
}
