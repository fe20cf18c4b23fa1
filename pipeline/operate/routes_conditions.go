package operate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// PauseReader is offered by the plugin that keeps what operators have ordered about routes.
type PauseReader interface {
	// ReadPauses returns a condition for each of these routes that is paused, whether or not an instance runs.
	ReadPauses(ctx context.Context, routes []pipeline.Route) ([]Condition, error)
}

// pauses are the routes that are paused, or why that is not known.
type pauses struct {
	routes []Condition
	err    error
}

func readPauses(ctx context.Context, reg *pipeline.Registry) (p pauses) {
	readers := pipeline.Offers[PauseReader](reg)
	if len(readers) == 0 {
		return p
	}
	p.err = recovered(func() (err error) {
		p.routes, err = readers[0].ReadPauses(ctx, reg.Routes())
		return err
	})
	return p
}

// PausedNote says that the route which accepts something is paused, since when, by whom and why, for a person who does
// not find it. It is empty when the route is not paused, or that is not known. reg may be nil.
func PausedNote(ctx context.Context, reg *pipeline.Registry, route string) string {
	if reg == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, conditionsLimit)
	defer cancel()
	for _, c := range readPauses(ctx, reg).routes {
		if c.Route == route {
			return fmt.Sprintf("The route %s, which accepts it, is %s", route, c.Text)
		}
	}
	return ""
}

// conditionsLimit bounds the wait for an instance on this machine.
const conditionsLimit = 2 * time.Second

// conditionsOfInstance are what the instance at an address of this machine says, or why that is not known.
type conditionsOfInstance struct {
	all      []Condition
	instance string
	err      error
	unasked  bool // the program can't ask
}

func readConditions(ctx context.Context, reg *pipeline.Registry) (c conditionsOfInstance) {
	readers := pipeline.Offers[ConditionReader](reg)
	if len(readers) == 0 {
		return conditionsOfInstance{unasked: true}
	}
	bounded, cancel := context.WithTimeout(ctx, conditionsLimit)
	defer cancel()
	c.err = recovered(func() (err error) {
		c.all, c.instance, err = readers[0].ReadConditions(bounded)
		return err
	})
	return c
}

// addConditions adds a line per route that is paused, and per condition of the instance on this machine that is not in
// order: of one route, or of all.
func (a *Answer) addConditions(reg *pipeline.Registry, value *RoutesStatus, only string, orders pauses, told conditionsOfInstance) {
	asked := func(c Condition) bool {
		return only == "" || slices.ContainsFunc(reg.Routes(), func(r pipeline.Route) bool { return r.Name == only && c.About(r) })
	}
	for _, c := range orders.routes {
		if asked(c) {
			value.Paused, a.Checks = append(value.Paused, c), append(a.Checks, c.Check)
		}
	}
	if orders.err != nil {
		a.Notes = append(a.Notes, "Which routes are paused is not known: "+logs.OneLine(orders.err.Error()))
	}
	switch {
	case told.unasked:
		return
	case told.err != nil:
		a.Notes = append(a.Notes, "Far sides, pauses of effects, and unknown outcomes are known to a running instance, and are not shown: "+logs.OneLine(told.err.Error()))
		return
	}
	value.Conditions = []Condition{}
	for _, c := range told.all {
		if c.Level == OK || !asked(c) {
			continue
		}
		value.Conditions = append(value.Conditions, c)
		if !slices.ContainsFunc(orders.routes, func(order Condition) bool { return order.Name == c.Name }) {
			a.Checks = append(a.Checks, c.Check)
		}
	}
	if len(value.Conditions) > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("What is said of far sides and effects is what the instance at %s knows.", told.instance))
	}
}
