package graph

import (
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// RouteID is the ID of the box of a route.
func RouteID(route string) string { return "route " + route }

// PlaceID is the ID of the box of a topic or stream. All groups of a place share it.
func PlaceID(at pipeline.Endpoint) string { return at.Kind + " " + at.Name }

// PluginID is the ID of the box of a plugin that uses places outside of its routes. use is pipeline.UseWrites,
// or pipeline.UseFollows with what it calls about what it follows. These are two boxes, because what a plugin
// writes need not come of what it follows.
func PluginID(plugin, use string) string { return "plugin " + plugin + " " + use }

// Of returns the graph of all routes with the servers that they call, and of what plugins write, follow and call
// outside of them. HTTP endpoints are left out, because requests are not messages. Every box is in the state
// Unknown, without numbers.
func Of(t app.Topology) Graph {
	var g Graph
	add := func(b Box) string {
		if !slices.ContainsFunc(g.Boxes, func(other Box) bool { return other.ID == b.ID }) {
			g.Boxes = append(g.Boxes, b)
		}
		return b.ID
	}
	place := func(plugin string, at pipeline.Endpoint) string {
		return add(Box{ID: PlaceID(at), Kind: Place, Group: plugin, Type: at.Kind, Title: at.Name, State: Unknown})
	}
	for _, r := range t.Routes {
		from := place(r.Plugin, r.From)
		route := add(Box{ID: RouteID(r.Name), Kind: Step, Group: r.Plugin, Type: "route", Title: r.Name, State: Unknown})
		g.Edges = append(g.Edges, Edge{From: from, To: route, Way: Forward, Label: r.From.Group})
		to := func(at *pipeline.Endpoint, way Way, label string) {
			if at != nil {
				g.Edges = append(g.Edges, Edge{From: route, To: place(r.Plugin, *at), Way: way, Label: label})
			}
		}
		to(r.To, Forward, "")
		for _, o := range r.Outputs {
			to(&o.Endpoint, Forward, o.Output)
		}
		to(r.Retry, Retry, "")
		to(r.DeadLetter, Dead, "")
		for _, called := range r.Calls {
			to(&called, Forward, pipeline.UseCalls)
		}
	}
	for _, e := range t.Endpoints {
		use, label, outwards := e.Use, e.Group, e.Use != pipeline.UseFollows
		switch e.Use {
		case pipeline.UseWrites, pipeline.UseFollows:
		case pipeline.UseCalls:
			use, label = pipeline.UseFollows, pipeline.UseCalls
		default:
			continue
		}
		edge := Edge{From: place(e.Plugin, e.Endpoint), Way: Forward, Label: label}
		edge.To = add(Box{ID: PluginID(e.Plugin, use), Kind: Step, Group: e.Plugin, Type: "plugin, " + e.Use, Title: e.Plugin, State: Unknown})
		if outwards {
			edge.From, edge.To = edge.To, edge.From
		}
		g.Edges = append(g.Edges, edge)
	}
	return g
}
