package console

import (
	"context"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// routePage is the address of the page of one route, whose name is the value route.
const routePage = "route"

// routePages returns the page of one route. The field of its address is that of the actions.
func (s *server) routePages() []console.Page {
	return []console.Page{{Path: routePage, Title: "Route", Hidden: true, Panels: []console.Panel{
		{Name: "route", Title: "Route", Values: []string{"route"}, Load: s.showRoute, Actions: []string{"routes pause", "routes resume", "routes reset"}},
		{Name: "places", Title: "Where its messages come from and go to", Values: []string{"route"}, Load: s.showRoutePlaces},
		{Name: "history", Title: "The last 15 minutes", Values: []string{"route"}, Load: s.showRoutePast},
		{Name: "measured", Title: "What this instance has measured", Values: []string{"route"}, Load: s.showMeasured},
		{Name: "last-error", Title: "Last error of a message that is tried again", Values: []string{"route"}, Load: s.showLastError},
	}}}
}

// find returns the route that the address of a page names.
func (r readings) find(q console.Query) (one operate.RouteStatus, found bool) {
	for _, one := range operate.StatusOf(q.Registry, r.backlogs, r.dead, r.work) {
		if one.Route == q.Text("route") {
			return one, true
		}
	}
	return one, false
}

func (s *server) showRoute(ctx context.Context, q console.Query) (console.Block, error) {
	all := s.read(ctx)
	one, found := all.find(q)
	if !found {
		return nil, console.ErrNothing
	}
	return s.routesTable(all, []operate.RouteStatus{one}), nil
}

// showLastError shows it also when no message waits any more because of it.
func (s *server) showLastError(ctx context.Context, q console.Query) (console.Block, error) {
	all := s.read(ctx)
	one, found := all.find(q)
	if !found {
		return nil, console.ErrNothing
	}
	t := console.Table{
		Columns: console.Columns("Record", "Class", "Failed", "Instance", "Error"),
		Empty:   "No message of this route has failed and is tried again, since the instances that tell it were started.",
	}
	if last := one.LastError; last != nil {
		t.Rows = [][]console.Cell{{
			console.Word(last.Record), console.Word(last.Class), console.Moment(last.At), console.Word(last.Instance), console.Word(last.Text),
		}}
	}
	return t, nil
}
