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
	// ReadHistory returns what was done by step and route. The number of a step is the Unix time of its beginning
	// divided by HistoryStep. A step in which no instance told anything is not in it, and neither is a route that did
	// nothing.
	ReadHistory(context.Context) (map[int64]map[string]Handled, error)
}

// Handled are messages of a route in a step of time.
type Handled struct {
	Done   uint64 // acknowledged because they were handled
	Failed uint64 // whatever became of them, counted each time
}

// PastWork is what all instances did in a step of time that is over.
type PastWork struct {
	Begin time.Time
	Work  Work // its rates alone; without Routes they are not known
}

// historyLate is how long a step is over before it is told, because the clock of the server may be late.
const historyLate = 2 * time.Second

// ReadHistory returns what all instances did in the last HistorySteps steps, the oldest first. It is nil if no plugin
// keeps it, as without redis.
func ReadHistory(ctx context.Context, reg *pipeline.Registry) ([]PastWork, error) {
	readers := pipeline.Offers[HistoryReader](reg)
	if len(readers) == 0 {
		return nil, nil
	}
	var known map[int64]map[string]Handled
	if err := recovered(func() (err error) {
		known, err = readers[0].ReadHistory(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	const seconds = int64(HistoryStep / time.Second)
	now := time.Now().Add(-historyLate).Unix() / seconds
	var past []PastWork
	for step := now - HistorySteps; step < now; step++ {
		one := PastWork{Begin: time.Unix(step*seconds, 0).UTC()}
		if handled, told := known[step]; told {
			one.Work.Routes = map[string]pipeline.RouteWork{}
			for _, r := range reg.Routes() {
				one.Work.Routes[r.Name] = pipeline.RouteWork{DonePerSecond: perStep(handled[r.Name].Done), FailedPerSecond: perStep(handled[r.Name].Failed)}
			}
		}
		past = append(past, one)
	}
	return past, nil
}

// perStep returns the messages per second.
func perStep(messages uint64) *float64 {
	return new(float64(messages) / HistoryStep.Seconds())
}
