package graph_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/console/graph"
)

// draw returns the drawing of a graph.
func draw(t *testing.T, g graph.Graph) drawn {
	t.Helper()
	svg, err := g.SVG()
	require.NoError(t, err)
	d := read(t, string(svg))
	legible(t, d)
	return d
}

// box returns the drawn box with an ID.
func (d drawn) box(t *testing.T, id string) shape {
	t.Helper()
	i := slices.IndexFunc(d.boxes, func(b shape) bool { return b.id == id })
	require.GreaterOrEqual(t, i, 0, "%q is not drawn", id)
	return d.boxes[i]
}

// lowest returns the lowest point of the line between two boxes.
func (d drawn) lowest(t *testing.T, from, to string) (y float64) {
	t.Helper()
	i := slices.IndexFunc(d.edges, func(e shape) bool { return e.from == from && e.to == to })
	require.GreaterOrEqual(t, i, 0, "no line from %q to %q", from, to)
	for _, p := range d.edges[i].path {
		y = max(y, p.y)
	}
	return y
}

// orders has a route with a retry topic that a second route reads, and one that reads what both have written.
func orders() graph.Graph {
	return graph.Graph{
		Boxes: []graph.Box{
			{ID: "in", Kind: graph.Place, Title: "orders"}, {ID: "retry", Kind: graph.Place, Title: "orders-retry"},
			{ID: "dead", Kind: graph.Place, Title: "orders-dead"}, {ID: "paid", Kind: graph.Place, Title: "paid"},
			{ID: "pay", Kind: graph.Step, Title: "pay"}, {ID: "pay again", Kind: graph.Step, Title: "pay.retry"},
			{ID: "ship", Kind: graph.Step, Title: "ship"},
		},
		Edges: []graph.Edge{
			{From: "in", To: "pay", Label: "payers"}, {From: "pay", To: "paid"}, {From: "pay", To: "paid", Label: "audit"},
			{From: "pay", To: "retry", Way: graph.Retry}, {From: "pay", To: "dead", Way: graph.Dead},
			{From: "retry", To: "pay again"}, {From: "pay again", To: "paid"}, {From: "pay again", To: "retry", Way: graph.Retry},
			{From: "pay again", To: "dead", Way: graph.Dead}, {From: "paid", To: "ship"}, {From: "in", To: "ship", Label: "late"},
		},
	}
}

func TestColumnsAreTheLongestPathAndRetriesLeadBackBelow(t *testing.T) {
	t.Parallel()
	d := draw(t, orders())
	column := map[string]int{}
	var xs []float64
	for _, b := range d.boxes {
		if b.id != "dead" {
			xs = append(xs, b.rect.x)
		}
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	floor := 0.0
	for _, b := range d.boxes {
		if b.id != "dead" {
			column[b.id] = slices.Index(xs, b.rect.x)
			floor = max(floor, b.rect.y+b.rect.h)
		}
	}
	require.Equal(t, map[string]int{"in": 0, "retry": 0, "pay": 1, "pay again": 1, "paid": 2, "ship": 3}, column)
	require.Greater(t, d.box(t, "dead").rect.y, floor)
	require.Greater(t, d.lowest(t, "pay", "retry"), floor)
	require.Greater(t, d.lowest(t, "pay again", "retry"), floor)
	require.Less(t, d.lowest(t, "pay", "paid"), floor)
	require.Less(t, d.lowest(t, "in", "ship"), floor)
	require.Less(t, d.lowest(t, "pay", "retry"), d.box(t, "dead").rect.y)
}

// A circle that is no retry is cut where it leads back to the places messages come from.
func TestACircleLeadsBackBelow(t *testing.T) {
	t.Parallel()
	d := draw(t, graph.Graph{
		Boxes: []graph.Box{
			{ID: "loop", Kind: graph.Step}, {ID: "out", Kind: graph.Place}, {ID: "again", Kind: graph.Place},
			{ID: "start", Kind: graph.Place}, {ID: "back", Kind: graph.Step},
		},
		Edges: []graph.Edge{
			{From: "start", To: "loop"}, {From: "loop", To: "out"}, {From: "out", To: "back"}, {From: "back", To: "again"}, {From: "again", To: "loop"},
		},
	})
	before := []string{"start", "loop", "out", "back", "again"}
	for i, id := range before[1:] {
		require.Greater(t, d.box(t, id).rect.x, d.box(t, before[i]).rect.x, id)
	}
	require.Greater(t, d.lowest(t, "again", "loop"), d.box(t, "again").rect.y+d.box(t, "again").rect.h)
}

func TestParallelEdgesShareALineWithTwoLabels(t *testing.T) {
	t.Parallel()
	g := orders()
	texts := func(from, to string) (list []string) {
		d := draw(t, g)
		for _, e := range d.edges {
			if e.from == from && e.to == to {
				list = append(list, e.title+" | "+strings.Join(e.texts, ","))
			}
		}
		return list
	}
	require.Equal(t, []string{"from pay to paid: audit | audit"}, texts("pay", "paid"))
	require.Equal(t, []string{"from pay to orders-dead: dead letters | "}, texts("pay", "dead"))
	g.Edges = append(g.Edges, graph.Edge{From: "pay", To: "paid", Label: "refunds"}, graph.Edge{From: "pay", To: "paid", Way: graph.Dead})
	require.Equal(t, []string{"from pay to paid: audit, refunds, dead letters | audit,and 2 more"}, texts("pay", "paid"))
	g.Edges = g.Edges[:len(g.Edges)-1]
	require.Equal(t, []string{"from pay to paid: audit, refunds | audit,refunds"}, texts("pay", "paid"))
}

// The boxes of a column are in the order of what they come from, and each stands next to it.
func TestLinesDoNotCrossWithoutNeed(t *testing.T) {
	t.Parallel()
	var g graph.Graph
	for i := range 6 {
		g.Boxes = append(g.Boxes, graph.Box{ID: fmt.Sprint("in", i), Kind: graph.Place}, graph.Box{ID: fmt.Sprint("step", 5-i), Kind: graph.Step})
		g.Edges = append(g.Edges, graph.Edge{From: fmt.Sprint("in", i), To: fmt.Sprint("step", i)})
	}
	d := draw(t, g)
	for i := range 6 {
		require.InDelta(t, d.box(t, fmt.Sprint("in", i)).rect.y, d.box(t, fmt.Sprint("step", i)).rect.y, 0.1, i)
	}
}

func TestABoxSaysItsStateAndIsWholeInItsTitle(t *testing.T) {
	t.Parallel()
	const why = "Pays nothing, because the breaker is open for 3m after answers of 500."
	d := draw(t, graph.Graph{Boxes: []graph.Box{
		{
			ID: "a", Kind: graph.Step, Type: "route", Title: "campaign-promotion\n<script>alert(1)</script>:VOUCHER", State: graph.Fail, Why: why, Link: "route?name=a&b",
			Numbers: []graph.Number{{Name: "lag", Value: "1,204"}, {Name: "in flight", Value: "3"}, {Name: "oldest", Value: "4m"}, {Name: "dead", Value: "7"}},
		},
		{ID: "b", Kind: graph.Place, Title: "\u202etopic\x00 日本語日本語日本語日本語日本語"},
	}})
	a := d.box(t, "a")
	require.Equal(t, "box step fail", a.class)
	require.Equal(t, "route?name=a&b", a.link)
	require.Equal(t, "route campaign-promotion\n<script>alert(1)</script>:VOUCHER, fail: "+why+"; lag 1,204; in flight 3; oldest 4m; dead 7", a.title)
	require.Equal(t, []string{
		"route", "fail", "campaign-promot…cript>:VOUCHER", "1,204", "lag", "3", "in flight", "4m", "oldest", "7", "dead", "Pays nothing, because the breaker…",
	}, a.texts)
	b := d.box(t, "b")
	require.Equal(t, "box place unknown", b.class)
	require.Equal(t, "\ufffdtopic\ufffd 日本語日本語日本語日本語日本語, unknown", b.title)
	require.Equal(t, []string{"unknown", "\ufffdtopic\ufffd 日…日本語日本語日本語"}, b.texts)
}

func TestALargeGraphHasABoxPerPlugin(t *testing.T) {
	t.Parallel()
	g := graph.Graph{Links: map[string]string{"shop": "part?of=shop"}}
	add := func(id string, kind graph.Kind, group string) {
		g.Boxes = append(g.Boxes, graph.Box{ID: id, Kind: kind, Group: group, Title: id, State: graph.OK})
	}
	add("shared", graph.Place, "shop")
	for i := range 13 {
		place, step, other := fmt.Sprint("p", i), fmt.Sprint("s", i), fmt.Sprint("o", i)
		add(place, graph.Place, "shop")
		add(step, graph.Step, "shop")
		add(other, graph.Step, "bank")
		g.Edges = append(g.Edges, graph.Edge{From: place, To: step}, graph.Edge{From: step, To: "shared"}, graph.Edge{From: "shared", To: other})
	}
	require.Len(t, draw(t, g).boxes, 40)
	add("more", graph.Place, "shop")
	g.Boxes[5].State, g.Boxes[5].Why = graph.Warn, "It lags."
	d := draw(t, g)
	require.Len(t, d.boxes, 3)
	shop := d.box(t, "group shop")
	require.Equal(t, "plugin shop, warn: "+g.Boxes[5].Title+": It lags.; steps 13; places 14", shop.title)
	require.Equal(t, "part?of=shop", shop.link)
	require.Equal(t, "plugin bank, ok; steps 13; places 0", d.box(t, "group bank").title)
	require.Len(t, d.edges, 2)
	svg, err := g.SVG()
	require.NoError(t, err)
	require.Contains(t, string(svg), `aria-label="Pipeline, steps: 2, places: 1. Each plugin is one box, because there are 41 boxes"`)
	require.Len(t, draw(t, g.Part("bank")).boxes, 14)
	require.Len(t, draw(t, g.Part("shop")).boxes, 28)
}
