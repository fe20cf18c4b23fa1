package console

import (
	"context"
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
	return console.Page{Path: partPage, Title: "Part of the pipeline", Hidden: true, Panels: []console.Panel{{Name: "graph", Title: "Routes of a plugin", Values: []string{"plugin"}, Load: s.showPart}}}
}

// linkOf returns the address of the page about a place, and "" if there is none.
func (s *server) linkOf(at pipeline.Endpoint) string {
	for _, p := range s.pages {
		switch {
		case !slices.Contains(p.Places, at.Kind):
		case p.PlaceLink != nil:
			return inside(p.PlaceLink(s.registry, at))
		default:
			return p.Path
		}
	}
	return ""
}

// link adds the pages that boxes lead to. A route has its own, and a place that of its kind.
func (s *server) link(g *graph.Graph) {
	to := func(page, name, value string) string {
		return s.plugin.config.Prefix + "/" + page + "?" + url.Values{name: {value}}.Encode()
	}
	pages := map[string]string{} // the routes that pages are about, by box
	for _, r := range s.registry.Routes() {
		pages[graph.RouteID(r.Name)] = operate.Reported(s.registry, r.Name)
	}
	g.Links = map[string]string{}
	for i := range g.Boxes {
		b := &g.Boxes[i]
		g.Links[b.Group] = to(partPage, "plugin", b.Group)
		if route, is := pages[b.ID]; is {
			b.Link = to(routePage, "route", route)
			continue
		}
		if b.Kind != graph.Place {
			continue
		}
		if link := s.linkOf(pipeline.Endpoint{Kind: b.Type, Name: b.Title}); link != "" {
			b.Link = s.plugin.config.Prefix + "/" + link
		}
	}
}

func (s *server) showPart(ctx context.Context, q console.Query) (console.Block, error) {
	found := s.read(ctx)
	g, topology := s.graph(found)
	plugin := q.Text("plugin")
	part := g.Part(plugin)
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
