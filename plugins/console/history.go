package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// linesOfHome is the number of routes that have a line of their own on the home page.
const linesOfHome = 5

// past is what routes did, retries included.
type past struct {
	begin  time.Time
	steps  int // 0: no plugin keeps it
	routes []pastOf
}

// pastOf has the messages per second of each step. Nil: not known.
type pastOf struct {
	route        string
	done, failed []*float64
}

// readPast reads it less often than other numbers, because it changes with each step only.
func (s *server) readPast(ctx context.Context) (past, error) {
	seldom := s.sources
	seldom.fresh = operate.HistoryStep / 3
	value, _, problem := s.readOne(ctx, "history", seldom, func(ctx context.Context) (any, error) {
		var all past
		steps, err := operate.ReadHistory(ctx, s.registry)
		if err != nil {
			return nil, err
		}
		if len(steps) > 0 {
			all.begin, all.steps = steps[0].Begin, len(steps)
		}
		for n, step := range steps {
			for i, r := range operate.StatusOf(s.registry, nil, nil, step.Work) {
				if n == 0 {
					all.routes = append(all.routes, pastOf{route: r.Route})
				}
				one := &all.routes[i]
				one.done, one.failed = append(one.done, r.DonePerSecond), append(one.failed, r.FailedPerSecond)
			}
		}
		return all, nil
	})
	all, known := value.(past)
	if !known {
		return past{}, errors.New(problem)
	}
	return all, nil
}

// These are shown in place of a chart.
const (
	notKept  = console.Text("Without the plugin redis nothing keeps what instances did.")
	noRoutes = console.Text("This process has no routes.")
)

// showPast is the panel of the home page with the busiest routes.
func (s *server) showPast(ctx context.Context, _ console.Query) (console.Block, error) {
	all, err := s.readPast(ctx)
	switch {
	case err != nil:
		return nil, err
	case all.steps == 0:
		return notKept, nil
	case len(all.routes) == 0:
		return noRoutes, nil
	}
	done, failed := make([]console.Line, len(all.routes)), make([]console.Line, len(all.routes))
	for i, r := range all.routes {
		done[i], failed[i] = console.Line{Name: r.route, Values: r.done}, console.Line{Name: r.route, Values: r.failed}
	}
	return console.Blocks{
		all.series("Messages handled per second", busiest(done), "none were."),
		all.series("Messages that failed, per second", busiest(failed), "none did."),
	}, nil
}

// showRoutePast is the panel of the page of a route.
func (s *server) showRoutePast(ctx context.Context, q console.Query) (console.Block, error) {
	all, err := s.readPast(ctx)
	i := slices.IndexFunc(all.routes, func(r pastOf) bool { return r.route == q.Text("route") })
	switch {
	case err != nil:
		return nil, err
	case all.steps == 0:
		return notKept, nil
	case i < 0:
		return nil, console.ErrNothing
	}
	return all.series("Messages per second", []console.Line{{Name: "handled", Values: all.routes[i].done}, {Name: "failed", Values: all.routes[i].failed}}, ""), nil
}

// series draws lines. If there are none, empty says why.
func (p past) series(unit string, lines []console.Line, empty string) console.Series {
	s := console.Series{Unit: unit, Begin: p.begin, Step: operate.HistoryStep, Lines: lines, Empty: empty}
	unknown := 0
	for _, v := range p.routes[0].done { // what is known is known of all routes
		if v == nil {
			unknown++
		}
	}
	switch {
	case unknown == p.steps:
		s.Lines, s.Empty = nil, "no instance has told anything yet, which takes up to half a minute."
	case unknown > 0:
		s.Note = fmt.Sprintf("A gap is a time that no instance has told anything about, %s in all.", console.Short(time.Duration(unknown)*s.Step))
	}
	return s
}

// busiest returns the lines with the largest sums, without those that are 0, and the sum of all others.
func busiest(lines []console.Line) []console.Line {
	slices.SortStableFunc(lines, func(a, b console.Line) int { return cmp.Compare(total(b), total(a)) })
	lines = slices.DeleteFunc(lines, func(l console.Line) bool { return total(l) == 0 })
	if len(lines) <= linesOfHome+1 {
		return lines
	}
	others := console.Line{Name: fmt.Sprintf("%d other routes", len(lines)-linesOfHome), Values: make([]*float64, len(lines[0].Values))}
	for _, l := range lines[linesOfHome:] {
		for i, v := range l.Values {
			if v == nil {
				continue
			}
			if others.Values[i] == nil {
				others.Values[i] = new(float64)
			}
			*others.Values[i] += *v
		}
	}
	return append(slices.Clone(lines[:linesOfHome]), others)
}

func total(l console.Line) (sum float64) {
	for _, v := range l.Values {
		if v != nil {
			sum += *v
		}
	}
	return sum
}
