package graph

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/internal/sorted"
)

// The measures of a drawing.
const (
	margin     = 12
	boxWidth   = 256
	boxHeight  = 94
	quarter    = 61 // of a box, for a number
	boxGap     = 22 // between the boxes of a column
	passHeight = 12
	portGap    = 15  // between the lines at one side of a box
	trackGap   = 9   // between the parallel parts of lines
	gutterMin  = 56  // for the bends between two columns
	letter     = 6.2 // the width of a letter of a label
	labelMax   = 24  // the letters of a label
	tip        = 7   // the length of the tip of an arrow
	bend       = 6   // the radius of a corner
)

// gutter is the space between two columns. From left to right it has the labels at the start of lines, the
// vertical parts of the lines below, and the labels at the end of lines.
type gutter struct {
	start, end int     // the widths for labels
	tracks     []*node // where the vertical part in each track leads
	used       bool
	x          int // of the first track
}

// track returns the number of the track to a box, which all lines to it share.
func (g *gutter) track(to *node) int {
	if i := slices.Index(g.tracks, to); i >= 0 {
		return i
	}
	g.tracks = append(g.tracks, to)
	return len(g.tracks) - 1
}

func (g gutter) width() int {
	if !g.used {
		return 0
	}
	return max(gutterMin, 14+g.start+len(g.tracks)*trackGap+g.end+14)
}

// labels returns the texts of a line, at most two.
func labels(l *line) []string {
	var all []string
	for _, e := range l.edges {
		text := e.Label
		switch {
		case text != "":
		case e.Way == Retry:
			text = "retry"
		case e.Way == Dead && l.way != Dead:
			text = "dead letters"
		}
		if text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	if len(all) > 2 {
		all = []string{all[0], fmt.Sprintf("and %d more", len(all)-1)}
	}
	return all
}

// setPorts places the lines at the sides of boxes, in the order of their other ends. Those below come last.
func (d *drawing) setPorts() {
	for _, n := range d.nodes {
		other := func(l *line) *node {
			switch all := l.passes; {
			case l.from == n && len(all) > 0:
				return all[0]
			case l.from == n:
				return l.to
			case len(all) > 0:
				return all[len(all)-1]
			}
			return l.from
		}
		for _, side := range [][]*line{n.in, n.out} {
			sorted.By(side, func(a, b *line) int {
				if a.below != b.below {
					return map[bool]int{false: -1, true: 1}[a.below]
				}
				if a.below {
					return 0
				}
				return cmp.Compare(other(a).middle(), other(b).middle())
			})
		}
	}
}

// height returns where a line is at the side of a box, from the top of the box.
func (l *line) height(side []*line, n *node) int {
	all, above := slots(side, n), 0
	for _, other := range side {
		if other == l {
			break
		}
		above += other.slots(n)
	}
	return n.h * (2*above + l.slots(n) + 1) / (2 * (all + 1))
}

// setTracks makes room for the lines that leave the columns, and sets all that depends on it.
func (d *drawing) setTracks() {
	d.gutters = make([]gutter, len(d.columns)+1)
	var lanes []*line
	for _, l := range d.lines {
		out, in := &d.gutters[l.from.column+1], &d.gutters[l.to.column]
		out.used, in.used = true, true
		for c := l.from.column + 1; !l.below && c <= l.to.column; c++ {
			d.gutters[c].used = true
		}
		width := 0
		for _, text := range l.labels {
			width = max(width, int(math.Ceil(float64(letters(shorten(text, labelMax)))*letter))+6)
		}
		if l.from.box.Kind == Step {
			out.start = max(out.start, width)
		} else {
			in.end = max(in.end, width)
		}
		if l.below {
			l.exit, l.entry = out.track(l.to), in.track(l.to)
			if in != out {
				lanes = append(lanes, l)
			}
		}
	}
	x := margin
	for c := range d.gutters {
		d.gutters[c].x = x + 14 + d.gutters[c].start
		x += d.gutters[c].width()
		if c < len(d.columns) {
			for _, n := range d.columns[c] {
				n.x = x
			}
			for _, n := range d.nodes {
				if n.bottom && n.column == c {
					n.x = x
				}
			}
			x += boxWidth
		}
	}
	d.width = x + margin
	d.setLanes(lanes)
	for _, l := range d.lines {
		l.exit = d.gutters[l.from.column+1].x + l.exit*trackGap
		l.entry = d.gutters[l.to.column].x + l.entry*trackGap
		l.start = l.from.y + l.height(l.from.out, l.from)
		l.end = l.to.y + l.height(l.to.in, l.to)
	}
}

// setLanes places the horizontal parts of the lines below, one per box to which they lead and the shortest first,
// and then the boxes at the bottom.
func (d *drawing) setLanes(lanes []*line) {
	length := map[*node]int{}
	for _, l := range lanes {
		length[l.to] = max(length[l.to], l.from.column-l.to.column, l.to.column-l.from.column)
	}
	sorted.By(lanes, func(a, b *line) int { return cmp.Compare(length[a.to], length[b.to]) })
	lane := map[*node]int{}
	for _, l := range lanes {
		if lane[l.to] == 0 {
			d.height += trackGap
			lane[l.to] = d.height + trackGap
		}
		l.lane = lane[l.to]
	}
	if len(lanes) > 0 {
		d.height += trackGap
	}
	for row, found := 0, true; found; row++ {
		found = false
		top := d.height + boxGap
		for _, n := range d.nodes {
			if n.bottom && n.row == row {
				n.y, found = top, true
				d.height = max(d.height, top+n.h)
			}
		}
	}
	d.height += margin
}

// path returns the line as the data of an SVG path.
func (l *line) path() string {
	var b strings.Builder
	x, y := l.from.x+l.from.w, l.start
	fmt.Fprintf(&b, "M%d %d", x, y)
	if l.below {
		points := [][2]int{{l.exit, y}}
		if l.exit != l.entry {
			points = append(points, [2]int{l.exit, l.lane}, [2]int{l.entry, l.lane})
		}
		points = append(points, [2]int{l.entry, l.end}, [2]int{l.to.x - tip, l.end})
		last := [2]int{x, y}
		for i, p := range points[:len(points)-1] {
			round(&b, last, p, points[i+1])
			last = p
		}
		fmt.Fprintf(&b, "L%d %d", l.to.x-tip, l.end)
		return b.String()
	}
	curve := func(toX, toY int) {
		half := (x + toX) / 2
		fmt.Fprintf(&b, "C%d %d %d %d %d %d", half, y, half, toY, toX, toY)
		x, y = toX, toY
	}
	for _, n := range l.passes {
		curve(n.x, n.middle())
		x = n.x + n.w
		fmt.Fprintf(&b, "L%d %d", x, y)
	}
	curve(l.to.x-tip, l.end)
	return b.String()
}

// round writes the way from last to just after the corner at p, in the direction of next.
func round(b *strings.Builder, last, p, next [2]int) {
	toward := func(q [2]int) [2]int {
		dx, dy := q[0]-p[0], q[1]-p[1]
		near := min(bend, max(dx, -dx, dy, -dy)/2)
		return [2]int{p[0] + near*cmp.Compare(dx, 0), p[1] + near*cmp.Compare(dy, 0)}
	}
	from, to := toward(last), toward(next)
	fmt.Fprintf(b, "L%d %dQ%d %d %d %d", from[0], from[1], p[0], p[1], to[0], to[1])
}
