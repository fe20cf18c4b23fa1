package console_test

import (
	"fmt"
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

// In a graph that is too large, the box of a plugin leads to its part, which is drawn.
func TestTheBoxOfAPluginLeadsToItsPart(t *testing.T) {
	t.Parallel()
	r := start(t, nil, lines{"a", 30}, lines{"b", 3})
	require.ElementsMatch(t, []string{"/part?plugin=a", "/part?plugin=b"}, linksOf(r.get("/")))
	part := r.get("/part?plugin=b")
	require.ElementsMatch(t, []string{"/route?route=b.0", "/route?route=b.1", "/route?route=b.2"}, linksOf(part))
	require.NotContains(t, string(r.panels("part?plugin=b")["graph"].Value), `"a.0"`)
	require.Contains(t, r.get("/part?plugin=%3Cb%3E"), "No plugin &#34;&lt;b&gt;&#34; has a route here.")
}
