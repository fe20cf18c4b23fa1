package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// linesOfHome is the number of routes that have a line of their own on the home page.
const linesOfHome = 5

// readPast reads what routes did, less often than other numbers, because it changes with each step only. problem says
// why there is nothing newer.
func (s *server) readPast(ctx context.Context) (all operate.History, problem string, err error) {
	seldom := s.sources
	seldom.fresh = operate.HistoryStep / 3
	value, _, problem := s.readOne(ctx, "history", seldom, func(ctx context.Context) (any, error) {
		h, err := operate.ReadHistory(ctx, s.registry)
		if err != nil {
			return nil, err
		}
		return h, nil
	})
	all, known := value.(operate.History)
	if !known {
		return all, "", errors.New(problem)
	}
	return all, s.masks.text(problem), nil
}

// These are shown in place of a chart.
const (
	notKept  = console.Text("Without the plugin redis nothing keeps what instances did.")
	noRoutes = console.Text("This process has no routes.")
)

// showPast is the panel of the home page with the busiest routes.
func (s *server) showPast(ctx context.Context, _ console.Query) (console.Block, error) {
	all, problem, err := s.readPast(ctx)
	switch {
	case err != nil:
		return nil, err
	case all.Begin.IsZero():
		return notKept, nil
	case len(all.Routes) == 0:
		return noRoutes, nil
	}
	done, failed := make([]console.Line, len(all.Routes)), make([]console.Line, len(all.Routes))
	for i, r := range all.Routes {
		done[i], failed[i] = console.Line{Name: r.Route, Values: r.Done}, console.Line{Name: r.Route, Values: r.Failed}
	}
	return console.Blocks{
		seriesOf(all, problem, "Messages handled per second", busiest(done), "none were."),
		seriesOf(all, problem, "Messages that failed, per second", busiest(failed), "none did."),
	}, nil
}

// showRoutePast is the panel of the page of a route.
func (s *server) showRoutePast(ctx context.Context, q console.Query) (console.Block, error) {
	all, problem, err := s.readPast(ctx)
	i := slices.IndexFunc(all.Routes, func(r operate.RouteOfPast) bool { return r.Route == q.Text("route") })
	switch {
	case err != nil:
		return nil, err
	case all.Begin.IsZero():
		return notKept, nil
	case i < 0:
		return nil, console.ErrNothing
	}
	lines := []console.Line{{Name: "handled", Values: all.Routes[i].Done}, {Name: "failed", Values: all.Routes[i].Failed}}
	return seriesOf(all, problem, "Messages per second", lines, ""), nil
}

// seriesOf draws lines of a history with routes. If there are none, empty says why.
func seriesOf(h operate.History, problem, unit string, lines []console.Line, empty string) console.Series {
	s := console.Series{Unit: unit, Begin: h.Begin, Step: operate.HistoryStep, Lines: lines, Empty: empty}
	unknown := 0
	for _, v := range h.Routes[0].Done { // what is known is known of all routes
		if v == nil {
			unknown++
		}
	}
	var notes []string
	switch {
	case unknown == operate.HistorySteps:
		s.Lines, s.Empty = nil, "no instance has told anything yet, which takes up to half a minute."
	case unknown > 0:
		notes = append(notes, fmt.Sprintf("A gap is a time that no instance has told anything about, %s in all.", console.Short(time.Duration(unknown)*s.Step)))
	}
	if problem != "" {
		notes = append(notes, "Nothing newer is known: "+problem+".")
	}
	s.Note = strings.Join(notes, " ")
	return s
}

// busiest returns the lines with the largest sums, without those that are 0, and the sum of all others.
func busiest(lines []console.Line) []console.Line {
	sorted.By(lines, func(a, b console.Line) int { return cmp.Compare(total(b), total(a)) })
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
