package store

import "cmp"

// Source is where a message came from, as its transport wrote it in the pipeline.Origin.
type Source struct {
	Kind     string `json:"kind,omitempty"`     // of the transport; empty: unknown
	Name     string `json:"name"`               // topic or stream
	Position string `json:"position,omitempty"` // of the message, the name included
}

// String returns the position, or the name where there is none.
func (s Source) String() string { return cmp.Or(s.Position, s.Name) }
