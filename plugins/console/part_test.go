package console_test

import (
	"fmt"
	"net/http"
	"regexp"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
)

// lines is a plugin with routes.
type lines struct {
	name   string
	routes int
}

func (l lines) Name() string { return l.name }

func (l lines) Register(r *pipeline.Registry) error {
	for n := range l.routes {
		name := fmt.Sprint(l.name, ".", n)
		r.Route(pipeline.Route{Name: name, From: pipelinetest.NewFeed(name), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil }})
	}
	return nil
}

// linksOf returns the links of the boxes in a drawing.
func linksOf(page string) (all []string) {
	for _, found := range regexp.MustCompile(`<a class="box [^"]*" data-id="[^"]*" href="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		all = append(all, found[1])
	}
	return all
}

// A box leads to the page of its route, or of its kind of place, also below a prefix.
func TestBoxesOfTheGraphAreLinks(t *testing.T) {
	t.Parallel()
	feeds := contributor{{Path: "feeds", Title: "Feeds", Places: []string{"feed"}, Panels: []pages.Panel{loading("feeds", pages.Text("all feeds"), nil)}}}
	r := start(t, func(c *console.Config) { c.Prefix = "/millrace" }, lines{"a", 1}, feeds)
	links := linksOf(r.get("/millrace/"))
	require.ElementsMatch(t, []string{"/millrace/route?route=a.0", "/millrace/feeds"}, links)
	require.Contains(t, r.get("/millrace/route?route=a.0"), "a.0")
}

// The page may lead to what it knows of one place, and what it knows nothing of is no link. Neither is a foreign address.
func TestABoxLeadsToItsPlace(t *testing.T) {
	t.Parallel()
	ofPlace := map[string]string{"a.0": "feed?feed=a.0", "a.1": "", "a.2": "https://elsewhere.example/"}
	r := start(t, nil, lines{"a", 3}, contributor{{
		Path: "feeds", Title: "Feeds", Places: []string{"feed"}, Panels: []pages.Panel{loading("feeds", pages.Text("all feeds"), nil)},
		PlaceLink: func(_ *pipeline.Registry, at pipeline.Endpoint) string { return ofPlace[at.Name] },
	}})
	require.ElementsMatch(t, []string{"/route?route=a.0", "/route?route=a.1", "/route?route=a.2", "/feed?feed=a.0"}, linksOf(r.get("/")))
}

// returning has a route whose retries another route reads, which is a part of it.
type returning struct{}

func (returning) Name() string { return "returning" }

func (returning) Register(r *pipeline.Registry) error {
	var topics pipelinetest.Topics
	r.Route(pipeline.Route{Name: "parcels", From: topics.Source("parcels", "g"), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: pipeline.RetryVia(&topics, "parcels-retry", "g-retry", 3, pipeline.Backoff{})}})
	return nil
}

// The numbers of a route that reads retries are on the page of the route that retries.
func TestTheBoxOfARetryLeadsToItsRoute(t *testing.T) {
	t.Parallel()
	r := start(t, nil, returning{})
	links := linksOf(r.get("/"))
	require.Equal(t, []string{"/route?route=parcels", "/route?route=parcels"}, links)
	require.NotContains(t, r.get(links[0]), "No route has the name")
}

func TestTwoPagesMustNotBeAboutOneKindOfPlace(t *testing.T) {
	t.Parallel()
	panel := []pages.Panel{loading("a", pages.Text("a"), nil)}
	twice := contributor{{Path: "a", Title: "A", Places: []string{"feed"}, Panels: panel}, {Path: "b", Title: "B", Places: []string{"feed"}, Panels: panel}}
	c := console.New()
	c.Settings().(*console.Config).Listen = "127.0.0.1:0"
	reg, err := pipeline.NewRegistry(pipeline.Env{}, twice, c)
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.ErrorContains(t, runtime.StartServices(t.Context()), `page "b": the page "a" is about places of the kind feed already`)
}

// In a graph that is too large, the box of a plugin leads to its part, which is drawn.
func TestTheBoxOfAPluginLeadsToItsPart(t *testing.T) {
	t.Parallel()
	r := start(t, nil, lines{"a", 30}, lines{"b", 3})
	require.ElementsMatch(t, []string{"/part?plugin=a", "/part?plugin=b"}, linksOf(r.get("/")))
	require.Len(t, linksOf(r.get("/part?plugin=a")), 30, "it is drawn whole")
	part := r.get("/part?plugin=b")
	require.Contains(t, part, "The routes of the plugin b, and the places that they use.")
	_, text := r.do(http.MethodGet, "/part?plugin=b", "", "Accept: text/plain")
	require.Contains(t, text, "\nb.2 ")
	require.NotContains(t, text, "\na.0 ")
	require.ElementsMatch(t, []string{"/route?route=b.0", "/route?route=b.1", "/route?route=b.2"}, linksOf(part))
	value := string(r.panels("part?plugin=b")["graph"].Value)
	require.Contains(t, value, `"b.0"`)
	require.NotContains(t, value, `"a.0"`)
	r.requireNotFound("part?plugin=%3Cb%3E", `No plugin "<b>" has a route here. The page Pipeline has all routes.`)
}
