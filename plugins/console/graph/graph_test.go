package graph_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/plugins/console/graph"
)

type point struct{ x, y float64 }

type rect struct{ x, y, w, h float64 }

// shape is what a drawing has for a box or an edge.
type shape struct {
	class, id, from, to, title, link string
	rect                             rect
	path                             []point
	texts                            []string
}

// drawn is a drawing that was read as XML.
type drawn struct {
	width, height float64
	boxes, edges  []shape
}

func read(t require.TestingT, svg string) (d drawn) {
	dec := xml.NewDecoder(strings.NewReader(svg))
	var in *shape
	text := ""
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		require.NoError(t, err, svg)
		switch e := token.(type) {
		case xml.StartElement:
			attr := map[string]string{}
			for _, a := range e.Attr {
				attr[a.Name.Local] = a.Value
			}
			require.NotContains(t, attr, "style")
			for name := range attr {
				require.False(t, strings.HasPrefix(name, "on"), name)
			}
			text = ""
			switch class := strings.Fields(attr["class"]); {
			case e.Name.Local == "svg":
				d.width, d.height = number(t, attr["width"]), number(t, attr["height"])
			case len(class) > 1 && class[0] == "box":
				d.boxes = append(d.boxes, shape{class: attr["class"], id: attr["data-id"], link: attr["href"]})
				in = &d.boxes[len(d.boxes)-1]
			case len(class) > 1 && class[0] == "edge":
				d.edges = append(d.edges, shape{class: attr["class"], from: attr["data-from"], to: attr["data-to"]})
				in = &d.edges[len(d.edges)-1]
			case e.Name.Local == "rect":
				in.rect = rect{number(t, attr["x"]), number(t, attr["y"]), number(t, attr["width"]), number(t, attr["height"])}
			case attr["class"] == "line":
				in.path = flatten(t, attr["d"])
			default:
				require.Contains(t, []string{"text", "title", "path"}, e.Name.Local)
			}
		case xml.CharData:
			text += string(e)
		case xml.EndElement:
			switch e.Name.Local {
			case "title":
				in.title = text
			case "text":
				in.texts = append(in.texts, text)
			}
		}
	}
}

func number(t require.TestingT, s string) float64 {
	var f float64
	_, err := fmt.Sscan(s, &f)
	require.NoError(t, err, s)
	return f
}

var command = regexp.MustCompile(`([MLCQ])([^MLCQ]*)`)

// flatten returns the corners of a path, with 16 for each of its bends.
func flatten(t require.TestingT, data string) (all []point) {
	for _, c := range command.FindAllStringSubmatch(data, -1) {
		var args []point
		numbers := strings.Fields(c[2])
		for i := 0; i+1 < len(numbers); i += 2 {
			args = append(args, point{number(t, numbers[i]), number(t, numbers[i+1])})
		}
		if c[1] == "M" || c[1] == "L" {
			all = append(all, args...)
			continue
		}
		curve := append([]point{all[len(all)-1]}, args...)
		for i := 1; i <= 16; i++ {
			all = append(all, onCurve(curve, float64(i)/16))
		}
	}
	return all
}

// onCurve returns the point of a Bézier curve.
func onCurve(curve []point, at float64) point {
	if len(curve) == 1 {
		return curve[0]
	}
	a, b := onCurve(curve[:len(curve)-1], at), onCurve(curve[1:], at)
	return point{a.x + (b.x-a.x)*at, a.y + (b.y-a.y)*at}
}

// crosses reports whether the way from a to b enters the inside of r.
func crosses(a, b point, r rect) bool {
	const rim = 0.5
	first, last := 0.0, 1.0
	for _, axis := range [][4]float64{{a.x, b.x, r.x + rim, r.x + r.w - rim}, {a.y, b.y, r.y + rim, r.y + r.h - rim}} {
		from, by, low, high := axis[0], axis[1]-axis[0], axis[2], axis[3]
		if by == 0 {
			if from <= low || from >= high {
				return false
			}
			continue
		}
		enter, leave := (low-from)/by, (high-from)/by
		first, last = max(first, min(enter, leave)), min(last, max(enter, leave))
	}
	return first < last
}

func overlap(a, b rect) bool {
	return a.x < b.x+b.w && b.x < a.x+a.w && a.y < b.y+b.h && b.y < a.y+a.h
}

// anyGraph has up to most boxes with texts of any content.
func anyGraph(most int) *rapid.Generator[graph.Graph] {
	return rapid.Custom(func(t *rapid.T) graph.Graph {
		var g graph.Graph
		var places, steps []string
		for i := range rapid.IntRange(0, most).Draw(t, "boxes") {
			b := graph.Box{
				ID:    fmt.Sprintf("%d %s", i, rapid.String().Draw(t, "id")),
				Kind:  rapid.SampledFrom([]graph.Kind{graph.Place, graph.Step}).Draw(t, "kind"),
				Group: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "group"),
				Type:  rapid.String().Draw(t, "type"),
				Title: rapid.String().Draw(t, "title"),
				State: rapid.SampledFrom([]graph.State{"", graph.OK, graph.Warn, graph.Fail, graph.Unknown}).Draw(t, "state"),
				Why:   rapid.String().Draw(t, "why"),
				Link:  rapid.SampledFrom([]string{"", "route?name=a&b", "https://example.com/"}).Draw(t, "link"),
			}
			for range rapid.IntRange(0, 4).Draw(t, "numbers") {
				b.Numbers = append(b.Numbers, graph.Number{Name: rapid.String().Draw(t, "name"), Value: rapid.String().Draw(t, "value")})
			}
			g.Boxes = append(g.Boxes, b)
			if b.Kind == graph.Place {
				places = append(places, b.ID)
			} else {
				steps = append(steps, b.ID)
			}
		}
		if len(places) == 0 || len(steps) == 0 {
			return g
		}
		for range rapid.IntRange(0, 2*len(g.Boxes)).Draw(t, "edges") {
			e := graph.Edge{
				From: rapid.SampledFrom(places).Draw(t, "place"), To: rapid.SampledFrom(steps).Draw(t, "step"),
				Label: rapid.OneOf(rapid.Just(""), rapid.String()).Draw(t, "label"),
			}
			if rapid.Bool().Draw(t, "out") {
				e.From, e.To = e.To, e.From
				e.Way = rapid.SampledFrom([]graph.Way{"", graph.Forward, graph.Retry, graph.Dead}).Draw(t, "way")
			}
			g.Edges = append(g.Edges, e)
		}
		return g
	})
}

// legible fails when boxes overlap, a line crosses a box, or something is outside of the drawing.
func legible(t require.TestingT, d drawn) {
	boxes := map[string]rect{}
	for i, b := range d.boxes {
		boxes[b.id] = b.rect
		require.Greater(t, min(b.rect.x, b.rect.y, b.rect.w, b.rect.h), 0.0, b.id)
		require.Less(t, b.rect.x+b.rect.w, d.width, b.id)
		require.Less(t, b.rect.y+b.rect.h, d.height, b.id)
		for _, other := range d.boxes[:i] {
			require.False(t, overlap(b.rect, other.rect), "%q and %q overlap", b.id, other.id)
		}
	}
	for _, e := range d.edges {
		name := fmt.Sprintf("%q to %q", e.from, e.to)
		from, to := boxes[e.from], boxes[e.to]
		first, last := e.path[0], e.path[len(e.path)-1]
		require.InDelta(t, from.x+from.w, first.x, 0.01, name)
		require.InDelta(t, to.x, last.x, 8, name)
		require.True(t, from.y < first.y && first.y < from.y+from.h, name)
		require.True(t, to.y < last.y && last.y < to.y+to.h, name)
		for i, p := range e.path {
			require.True(t, p.x > 0 && p.y > 0 && p.x < d.width && p.y < d.height, name)
			for _, b := range d.boxes {
				require.False(t, i > 0 && crosses(e.path[max(0, i-1)], p, b.rect), "%s crosses %q", name, b.id)
			}
		}
	}
}

// pairs returns the ends of all edges, once each.
func pairs(g graph.Graph) (all []string) {
	for _, e := range g.Edges {
		all = append(all, asDrawn(e.From)+" → "+asDrawn(e.To))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// asDrawn returns a text without what XML can't hold.
func asDrawn(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n', r == '\r', r >= 0x20 && r < 0xd800, r >= 0xe000 && r < 0xfffe, r > 0xffff:
			if r == 0x061c || r == 0x200e || r == 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
				return utf8.RuneError
			}
			return r
		}
		return utf8.RuneError
	}, s)
}

func TestEveryGraphIsLegible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := anyGraph(40).Draw(t, "graph")
		svg, err := g.SVG()
		require.NoError(t, err)
		for range 3 {
			again, err := g.SVG()
			require.NoError(t, err)
			require.Equal(t, svg, again)
		}
		d := read(t, string(svg))
		legible(t, d)
		require.Len(t, d.boxes, len(g.Boxes))
		found := map[string]shape{}
		for _, b := range d.boxes {
			found[b.id] = b
		}
		for _, b := range g.Boxes {
			as, ok := found[asDrawn(b.ID)]
			require.True(t, ok, b.ID)
			require.Equal(t, b.Link, as.link)
			require.Contains(t, as.title, asDrawn(strings.TrimSpace(b.Title)))
			require.Contains(t, as.title, asDrawn(b.Why))
			for _, n := range b.Numbers {
				require.Contains(t, as.title, asDrawn(n.Name+" "+n.Value))
			}
			for _, text := range as.texts {
				require.LessOrEqual(t, utf8.RuneCountInString(text), 34)
			}
		}
		var edges []string
		for _, e := range d.edges {
			edges = append(edges, e.from+" → "+e.to)
			require.LessOrEqual(t, len(e.texts), 2)
		}
		slices.Sort(edges)
		require.Equal(t, pairs(g), edges)
	})
}

// A large graph has one box per group, and the places that several of them use.
func TestEveryLargeGraphIsLegible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		g := anyGraph(90).Filter(func(g graph.Graph) bool { return len(g.Boxes) > 40 }).Draw(t, "graph")
		g.Links = map[string]string{"a": "part?of=a"}
		svg, err := g.SVG()
		require.NoError(t, err)
		again, err := g.SVG()
		require.NoError(t, err)
		require.Equal(t, svg, again)
		d := read(t, string(svg))
		legible(t, d)
		found := map[string]shape{}
		for _, b := range d.boxes {
			found[b.id] = b
		}
		require.Len(t, found, len(d.boxes))
		for _, b := range g.Boxes {
			if b.Kind == graph.Step && b.Group != "" {
				require.Contains(t, found, "group "+b.Group)
				require.NotContains(t, found, asDrawn(b.ID))
				if b.State == graph.Fail {
					require.Contains(t, found["group "+b.Group].class, "fail")
				}
			}
			if b.Kind == graph.Step && b.Group == "" {
				require.Contains(t, found, asDrawn(b.ID))
			}
		}
		if a, ok := found["group a"]; ok {
			require.Equal(t, "part?of=a", a.link)
		}
		for _, group := range []string{"a", "b", "c"} {
			part := g.Part(group)
			if len(part.Boxes) <= 40 {
				svg, err := part.SVG()
				require.NoError(t, err)
				legible(t, read(t, string(svg)))
			}
			for _, b := range g.Boxes {
				if b.Group == group && b.Kind == graph.Step {
					require.True(t, slices.ContainsFunc(part.Boxes, func(p graph.Box) bool { return p.ID == b.ID }), b.ID)
				}
			}
		}
	})
}

func TestTheRulesOfALegibleDrawingBite(t *testing.T) {
	t.Parallel()
	box := rect{10, 10, 10, 10}
	for _, c := range []struct {
		a, b point
		want bool
	}{
		{point{0, 15}, point{30, 15}, true}, {point{0, 0}, point{30, 30}, true}, {point{15, 0}, point{15, 12}, true}, {point{14, 14}, point{16, 16}, true},
		{point{0, 10}, point{30, 10}, false}, {point{0, 15}, point{10, 15}, false}, {point{20, 0}, point{20, 30}, false}, {point{0, 18}, point{18, 36}, false},
	} {
		require.Equal(t, c.want, crosses(c.a, c.b, box), "%v", c)
	}
	require.True(t, overlap(box, rect{19, 19, 5, 5}))
	require.False(t, overlap(box, rect{20, 10, 5, 5}))
	require.InDelta(t, 5, onCurve([]point{{0, 0}, {0, 10}, {10, 10}, {10, 0}}, 0.5).x, 1e-9)
	require.False(t, math.IsNaN(onCurve([]point{{0, 0}, {1, 1}}, 0).x))
}

func TestMistakesInAGraph(t *testing.T) {
	t.Parallel()
	_, err := graph.Graph{
		Boxes: []graph.Box{
			{ID: "in", Kind: graph.Place}, {ID: "in", Kind: graph.Place}, {ID: "odd", Kind: "cloud"},
			{ID: "red", Kind: graph.Step, State: "red"}, {ID: "link", Kind: graph.Step, Link: "javascript:alert(1)"},
			{ID: "bad", Kind: graph.Step, Link: "%zz"},
		},
		Edges: []graph.Edge{{From: "in", To: "nowhere"}, {From: "red", To: "link"}, {From: "in", To: "red", Way: "sideways"}},
	}.SVG()
	require.EqualError(t, err, `graph: two boxes have the ID "in": give each one its own
graph: box "odd": the kind must be place or step, got "cloud"
graph: box "red": the state must be ok, warn, fail or unknown, got "red"
graph: box "link": the link must be relative, http or https, got "javascript:alert(1)"
graph: box "bad": the link must be an address: parse "%zz": invalid URL escape "%zz"
graph: edge from "in" to "nowhere": add a box for each of its ends
graph: edge from "red" to "link": both are a step, and it must lead from a place to a step or back
graph: edge from "in" to "red": the way must be forward, retry or dead, got "sideways"`)
}
