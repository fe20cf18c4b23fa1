package console

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console/graph"
)

// partPage is the page of the routes of one plugin, to which its box leads in a graph that is too large to be drawn whole.
const partPage = "part"

func (s *server) partOfPipeline() console.Page {
	return console.Page{Path: partPage, Title: "Part of the pipeline", Hidden: true, Panels: []console.Panel{{Name: "graph", Title: "Routes of a plugin", Load: s.showPart}}}
}

// ownerOf returns the route on whose page the numbers of a route are: the only one that retries into what it reads, or
// itself.
func ownerOf(t app.Topology, r app.TopologyRoute) string {
	var owners []string
	for _, other := range t.Routes {
		if other.Name != r.Name && other.Retry != nil && other.Retry.Kind == r.From.Kind && other.Retry.Name == r.From.Name {
			owners = append(owners, other.Name)
		}
	}
	if len(owners) == 1 {
		return owners[0]
	}
	return r.Name
}

// link adds the pages that boxes lead to. A route has its own, and a place that of its kind.
func (s *server) link(g *graph.Graph, t app.Topology) {
	to := func(page string, name, value string) string {
		return s.plugin.config.Prefix + "/" + page + "?" + url.Values{name: {value}}.Encode()
	}
	owners := map[string]string{} // of the boxes of routes
	for _, r := range t.Routes {
		owners[graph.RouteID(r.Name)] = ownerOf(t, r)
	}
	g.Links = map[string]string{}
	for i := range g.Boxes {
		b := &g.Boxes[i]
		g.Links[b.Group] = to(partPage, "plugin", b.Group)
		if route, is := owners[b.ID]; is {
			b.Link = to(routePage, "route", route)
			continue
		}
		for _, p := range s.pages {
			if b.Kind == graph.Place && slices.Contains(p.Places, b.Type) {
				b.Link = s.plugin.config.Prefix + "/" + p.Path
			}
		}
	}
}

func (s *server) showPart(ctx context.Context, q console.Query) (console.Block, error) {
	found := s.read(ctx)
	g, topology := s.graph(found)
	plugin := q.Text("plugin")
	part := g.Part(plugin)
	if len(part.Boxes) == 0 {
		return console.Text(fmt.Sprintf("No plugin %q has a route here. The page Pipeline has all routes.", plugin)), nil
	}
	topology.Routes = slices.DeleteFunc(topology.Routes, func(r app.TopologyRoute) bool { return r.Plugin != plugin })
	topology.Endpoints = slices.DeleteFunc(topology.Endpoints, func(e pipeline.PluginEndpoint) bool { return e.Plugin != plugin })
	drawing, err := drawn(part, topology)
	if err != nil {
		return nil, err
	}
	var routes []operate.RouteStatus
	for _, r := range operate.StatusOf(s.registry, found.backlogs, found.dead, found.work) {
		if slices.ContainsFunc(topology.Routes, func(own app.TopologyRoute) bool { return own.Name == r.Route }) {
			routes = append(routes, r)
		}
	}
	return console.Blocks{console.Text("The routes of the plugin " + plugin + ", and the places that they use."), drawing, s.routesTable(found, routes)}, nil
}
