package pipeline

import (
	"context"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Output is one output of a route.
type Output struct {
	Name string // in Route.Outputs; empty: it is Route.To
	Sink
}

// AllOutputs returns To, unless it is nil, and then Outputs in the order of their names.
func (r Route) AllOutputs() []Output {
	var list []Output
	if r.To != nil {
		list = append(list, Output{"", r.To})
	}
	for _, name := range slices.Sorted(maps.Keys(r.Outputs)) {
		list = append(list, Output{name, r.Outputs[name]})
	}
	return list
}

type outputKey struct{}

// SendTo returns a copy of m for the output of this name in Route.Outputs; an empty name means
// Route.To. A handler returns the copy among its messages, and may return several copies of one m.
// They share its payload. When the route has no such output, the message that was handled becomes a
// dead letter, and nothing is published for it. SendTo(nil, …) is nil.
//
// The name is in the context of the copy and not in its metadata, so it is not published, and no other
// program can set it. A middleware at PlaceHandler that returns other messages instead must give them
// the same contexts (message.CopyWithContext).
func SendTo(m *message.Message, output string) *message.Message {
	if m == nil {
		return nil
	}
	out := m.Copy()
	out.SetContext(context.WithValue(m.Context(), outputKey{}, output))
	return out
}

// OutputOf returns the name that SendTo gave to m; empty: m goes to Route.To.
func OutputOf(m *message.Message) string {
	name, _ := m.Context().Value(outputKey{}).(string)
	return name
}
