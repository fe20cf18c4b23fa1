package operate

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// What instances did is kept in steps of HistoryStep, as many as HistorySteps.
const (
	HistoryStep  = 15 * time.Second
	HistorySteps = 60
)

// HistoryReader is offered by the plugin that keeps what all instances did, also those that have ended since.
type HistoryReader interface {
	// ReadHistory returns what was done by step and route, and the step that is not over. The number of a step is the Unix
	// time of its beginning divided by HistoryStep. A step in which no instance told anything is not in it, and neither is a
	// route that did nothing.
	ReadHistory(context.Context) (steps map[int64]map[string]Handled, now int64, err error)
}

// Handled are messages of a route in a step of time.
type Handled struct {
	Done   uint64 // acknowledged because they were handled
	Failed uint64 // whatever became of them, counted each time
}

// History is what all instances did in the last steps that are over.
type History struct {
	Begin  time.Time     // of the first step; zero: no plugin keeps them, as without redis
	Routes []RouteOfPast // as StatusOf has them, so retries are part of the route that retries
}

// RouteOfPast has the messages per second of each of HistorySteps steps. Nil: not known, because no instance has told anything.
type RouteOfPast struct {
	Route        string
	Done, Failed []*float64
}

// ReadHistory returns what all instances did in the last HistorySteps steps.
func ReadHistory(ctx context.Context, reg *pipeline.Registry) (History, error) {
	readers := pipeline.Offers[HistoryReader](reg)
	if len(readers) == 0 {
		return History{}, nil
	}
	var known map[int64]map[string]Handled
	var now int64
	if err := recovered(func() (err error) {
		known, now, err = readers[0].ReadHistory(ctx)
		return err
	}); err != nil {
		return History{}, err
	}
	h := History{Begin: time.Unix((now-HistorySteps)*int64(HistoryStep/time.Second), 0).UTC()}
	for _, r := range reg.Routes() {
		if !hasStatus(reg, r) {
			continue
		}
		retries := retriesOf(reg, r)
		one := RouteOfPast{Route: r.Name, Done: make([]*float64, HistorySteps), Failed: make([]*float64, HistorySteps)}
		for i := range one.Done {
			handled, told := known[now-HistorySteps+int64(i)]
			if !told {
				continue
			}
			all := handled[r.Name]
			if retries != r.Name {
				again := handled[retries]
				all.Done, all.Failed = all.Done+again.Done, all.Failed+again.Failed
			}
			one.Done[i], one.Failed[i] = perStep(all.Done), perStep(all.Failed)
		}
		h.Routes = append(h.Routes, one)
	}
	return h, nil
}

// perStep returns the messages per second.
func perStep(messages uint64) *float64 {
	return new(float64(messages) / HistoryStep.Seconds())
}
