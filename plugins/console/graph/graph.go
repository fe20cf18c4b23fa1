// Package graph draws a pipeline as SVG. Places, such as topics and streams, alternate with the steps between
// them, such as routes. The drawing needs no script and no style of its own: the classes of its elements say
// what they are, and the stylesheet of the page colors them.
//
//	g := graph.Of(app.NewTopology(registry)) // every route and place, in the state Unknown
//	for i := range g.Boxes { … }             // the caller adds states, numbers and links
//	svg, err := g.SVG()
package graph

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
	// Numbers are drawn in this order. Those after the third are only in the title.
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
