package graph

import (
	"fmt"
	"slices"
)

// most is the number of boxes above which a graph is collapsed.
const most = 40

// Part returns the boxes of a group, with the places of others that they use. It is drawn whole, however large it is.
func (g Graph) Part(group string) Graph {
	part := Graph{Links: g.Links, whole: true}
	inside := map[string]bool{}
	for _, b := range g.Boxes {
		inside[b.ID] = b.Group == group && b.Kind == Step
	}
	drawn := map[string]bool{}
	for _, e := range g.Edges {
		if inside[e.From] || inside[e.To] {
			part.Edges = append(part.Edges, e)
			drawn[e.From], drawn[e.To] = true, true
		}
	}
	for _, b := range g.Boxes {
		if drawn[b.ID] || b.Group == group && !g.touches(b.ID) {
			part.Boxes = append(part.Boxes, b)
		}
	}
	return part
}

// touches reports whether a box has an edge.
func (g Graph) touches(id string) bool {
	return slices.ContainsFunc(g.Edges, func(e Edge) bool { return e.From == id || e.To == id })
}

// collapsed returns the graph with one box per group instead of its steps. Places between groups stay, and
// those that a single group uses are part of its box.
func (g Graph) collapsed() Graph {
	groups := map[string]map[string]bool{} // per place, the groups of its steps
	by := map[string]Box{}
	for _, b := range g.Boxes {
		by[b.ID], groups[b.ID] = b, map[string]bool{}
	}
	for _, e := range g.Edges {
		groups[e.From][by[e.To].Group] = true
		groups[e.To][by[e.From].Group] = true
	}
	out := Graph{Links: g.Links}
	to := map[string]string{} // from the ID of a box to that of the box it is drawn as
	members := map[string][]Box{}
	for _, b := range g.Boxes {
		group := b.Group
		if b.Kind == Place && len(groups[b.ID]) > 0 {
			group = ""
			for only := range groups[b.ID] {
				if len(groups[b.ID]) == 1 {
					group = only
				}
			}
		}
		to[b.ID] = b.ID
		if group == "" {
			out.Boxes = append(out.Boxes, b)
			continue
		}
		to[b.ID] = "group " + group
		if members[group] == nil {
			out.Boxes = append(out.Boxes, Box{ID: to[b.ID], Kind: Step, Group: group, Type: "plugin", Title: group, Link: g.Links[group]})
		}
		members[group] = append(members[group], b)
	}
	for i, b := range out.Boxes {
		if all := members[b.Group]; b.ID == "group "+b.Group {
			out.Boxes[i] = summary(b, all)
		}
	}
	for _, e := range g.Edges {
		e.From, e.To = to[e.From], to[e.To]
		if e.From != e.To {
			out.Edges = append(out.Edges, e)
		}
	}
	return out
}

// summary returns the box of a group with the worst state of its members and how many there are.
func summary(group Box, members []Box) Box {
	steps, worst := 0, members[0]
	for _, b := range members {
		if b.Kind == Step {
			steps++
		}
		if rank(b.State) > rank(worst.State) {
			worst = b
		}
	}
	group.State = worst.State
	if worst.Why != "" {
		group.Why = worst.Title + ": " + worst.Why
	}
	group.Numbers = []Number{{"steps", fmt.Sprint(steps)}, {"places", fmt.Sprint(len(members) - steps)}}
	return group
}

// rank orders states: what is known to be wrong is worse than what is not known.
func rank(s State) int { return slices.Index([]State{OK, Unknown, "", Warn, Fail}, s) }
