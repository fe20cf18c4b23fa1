// Package graph draws a pipeline as SVG. Places, such as topics and streams, alternate with the steps between
// them, such as routes. The drawing needs no script and no style of its own: the classes of its elements say
// what they are, and the stylesheet of the page colors them.
//
//	g := graph.Of(app.NewTopology(registry)) // every route and place, in the state Unknown
//	for i := range g.Boxes { … }             // the caller adds states, numbers and links
//	svg, err := g.SVG()
//
// Columns follow the longest path of the messages. A line that leads back, such as a retry, runs below all
// columns, and places that only receive dead letters stand at the bottom. Lines bend only between the columns,
// so none of them crosses a box. A graph of more than 40 boxes has one box per plugin instead, whose Part is a graph.
//
// The classes are place or step, and ok, warn, fail or unknown on an element with the class box; forward, retry
// or dead on one with the class edge; line, tip and label in an edge; and type, state, title, number, name and
// why for the texts of a box.
package graph

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
)

// Kind says what a box is.
type Kind string

// The kinds of boxes. An edge leads from one kind to the other.
const (
	Place Kind = "place" // a topic or a stream
	Step  Kind = "step"  // a route, or a plugin that uses places outside of its routes
)

// State is how a box is doing. It is also the class of the box.
type State string

// The states of a box. The empty state is Unknown.
const (
	OK      State = "ok"
	Warn    State = "warn"
	Fail    State = "fail"
	Unknown State = "unknown"
)

// Graph is what a pipeline consists of. Its order decides between boxes that could change places.
type Graph struct {
	Boxes []Box
	Edges []Edge
	// Links are addresses by group, for the boxes that stand for a group in a graph that is collapsed.
	Links map[string]string

	whole bool // it is drawn whole, however large it is
}

// Box is a place or a step. All of its texts may have any content and length: what is too long is cut in the
// drawing, and is whole in the title that a browser shows and a screen reader reads.
type Box struct {
	// ID is unique in the graph. Those of Of are RouteID, PlaceID and PluginID.
	ID    string
	Kind  Kind
	Group string // the plugin, by which a large graph is collapsed. Empty: the box belongs to none
	Type  string // a word above the title, such as kafka or route
	Title string
	State State
	Why   string // a sentence about the state
	// Numbers are drawn in this order. Those after the fourth are only in the title.
	Numbers []Number
	Link    string // the address behind the box, such as route?name=orders. Empty: none
}

// Number is a number of a box, as a text, because it may be unknown.
type Number struct{ Name, Value string }

// Way says what messages take an edge.
type Way string

// The ways of messages.
const (
	Forward Way = "forward" // all messages; the default
	Retry   Way = "retry"   // failed messages that are handled again
	Dead    Way = "dead"    // dead letters
)

// Edge is the way of messages between two boxes, which it names by their IDs.
type Edge struct {
	From, To string
	Way      Way
	Label    string // such as the group that reads, or the name of an output
}

// check returns all mistakes of a graph.
func (g Graph) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("graph: "+format, args...)) }
	kinds := map[string]Kind{}
	for _, b := range g.Boxes {
		if _, known := kinds[b.ID]; known {
			fail("two boxes have the ID %q: give each one its own", b.ID)
		}
		kinds[b.ID] = b.Kind
		if b.Kind != Place && b.Kind != Step {
			fail("box %q: the kind must be place or step, got %q", b.ID, b.Kind)
		}
		if rank(b.State) < 0 {
			fail("box %q: the state must be ok, warn, fail or unknown, got %q", b.ID, b.State)
		}
		if u, err := url.Parse(b.Link); err != nil {
			fail("box %q: the link must be an address: %w", b.ID, err)
		} else if !slices.Contains([]string{"", "http", "https"}, u.Scheme) {
			fail("box %q: the link must be relative, http or https, got %q", b.ID, b.Link)
		}
	}
	for _, e := range g.Edges {
		from, knowsFrom := kinds[e.From]
		to, knowsTo := kinds[e.To]
		switch {
		case !knowsFrom || !knowsTo:
			fail("edge from %q to %q: add a box for each of its ends", e.From, e.To)
		case from == to:
			fail("edge from %q to %q: both are a %s, and it must lead from a place to a step or back", e.From, e.To, from)
		}
		if !slices.Contains([]Way{"", Forward, Retry, Dead}, e.Way) {
			fail("edge from %q to %q: the way must be forward, retry or dead, got %q", e.From, e.To, e.Way)
		}
	}
	return errors.Join(errs...)
}
