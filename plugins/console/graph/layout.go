package graph

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace-io/millrace/internal/sorted"
)

// node is a box in the drawing, or the place where a line passes a column between its boxes.
type node struct {
	box        Box
	passing    bool
	bottom     bool // it only receives dead letters
	column     int
	row        int // at the bottom
	x, y, w, h int
	in, out    []*line
	before     []*node // its neighbors in the column to the left, and to the right
	after      []*node
}

func (n *node) middle() int { return n.y + n.h/2 }

// line is what all edges from one box to another share.
type line struct {
	from, to   *node
	edges      []Edge
	way        Way
	labels     []string
	back       bool    // it does not count for the columns, because it leads back
	below      bool    // it leaves the columns
	passes     []*node // where it passes the columns between its ends
	start, end int     // the heights at which it leaves and enters the boxes
	exit       int     // the x of its vertical parts, and the y of the horizontal one, of a line below
	entry      int
	lane       int
}

// drawing is a graph with the place of everything.
type drawing struct {
	nodes         []*node
	lines         []*line
	columns       [][]*node
	gutters       []gutter // the space before each column, and after the last one
	width, height int
}

func layOut(g Graph) *drawing {
	d := &drawing{}
	d.connect(g)
	d.findBottom()
	d.findBack()
	d.setColumns()
	d.order()
	d.setHeights()
	d.setRows()
	d.setPorts()
	d.setTracks()
	return d
}

// connect makes the nodes, and a line per pair of boxes.
func (d *drawing) connect(g Graph) {
	nodes := map[string]*node{}
	for _, b := range g.Boxes {
		n := &node{box: b, w: boxWidth}
		nodes[b.ID] = n
		d.nodes = append(d.nodes, n)
	}
	lines := map[[2]string]*line{}
	for _, e := range g.Edges {
		key := [2]string{e.From, e.To}
		l := lines[key]
		if l == nil {
			l = &line{from: nodes[e.From], to: nodes[e.To], way: Dead}
			lines[key] = l
			d.lines = append(d.lines, l)
			l.from.out, l.to.in = append(l.from.out, l), append(l.to.in, l)
		}
		e.Way = cmp.Or(e.Way, Forward)
		l.edges = append(l.edges, e)
		if ways := []Way{Forward, Retry, Dead}; slices.Index(ways, e.Way) < slices.Index(ways, l.way) {
			l.way = e.Way
		}
	}
	for _, l := range d.lines {
		l.labels = labels(l)
	}
}

// findBottom finds the places that receive nothing but dead letters. Their lines leave the columns.
func (d *drawing) findBottom() {
	for _, n := range d.nodes {
		n.bottom = n.box.Kind == Place && len(n.in) > 0 && !slices.ContainsFunc(n.in, func(l *line) bool { return l.way != Dead })
	}
	for _, l := range d.lines {
		l.below = l.from.bottom || l.to.bottom
	}
}

// findBack finds the lines without which there is no circle: retries, and what leads back to where a path came
// from.
func (d *drawing) findBack() {
	const entered, left = 1, 2
	seen := map[*node]int{}
	var visit func(*node)
	visit = func(n *node) {
		seen[n] = entered
		for _, l := range n.out {
			switch {
			case l.below:
			case l.way == Retry || seen[l.to] == entered:
				l.back = true
			case seen[l.to] == 0:
				visit(l.to)
			}
		}
		seen[n] = left
	}
	for _, n := range d.nodes { // where messages begin comes first, so that a circle is cut at its end
		if !slices.ContainsFunc(n.in, func(l *line) bool { return l.way != Retry && !l.below }) {
			visit(n)
		}
	}
	for _, n := range d.nodes {
		if seen[n] == 0 {
			visit(n)
		}
	}
}

// setColumns gives each box the column of the longest path to it. Places have the even ones.
func (d *drawing) setColumns() {
	known := map[*node]bool{}
	var column func(*node) int
	column = func(n *node) int {
		if known[n] {
			return n.column
		}
		known[n] = true
		if n.box.Kind == Step {
			n.column = 1
		}
		for _, l := range n.in {
			if !l.back && !l.below {
				n.column = max(n.column, column(l.from)+1)
			}
		}
		return n.column
	}
	for _, n := range d.nodes {
		if n.bottom {
			continue
		}
		for len(d.columns) <= column(n) {
			d.columns = append(d.columns, nil)
		}
		d.columns[n.column] = append(d.columns[n.column], n)
	}
	d.setBottom()
	for _, l := range d.lines {
		l.below = l.below || l.to.column < l.from.column
		if l.below {
			continue
		}
		last := l.from
		for c := l.from.column + 1; c < l.to.column; c++ {
			n := &node{passing: true, column: c, w: boxWidth, h: passHeight}
			d.columns[c] = append(d.columns[c], n)
			l.passes = append(l.passes, n)
			last.after, n.before = append(last.after, n), []*node{last}
			last = n
		}
		last.after, l.to.before = append(last.after, l.to), append(l.to.before, last)
	}
}

// setBottom gives the boxes at the bottom the free column that is nearest to what they come from.
func (d *drawing) setBottom() {
	taken := map[[2]int]bool{}
	for _, n := range d.nodes {
		if !n.bottom {
			continue
		}
		want := 0
		for _, l := range n.in {
			want = max(want, l.from.column+1)
		}
		want = min(want, len(d.columns)-1)
		for found := false; !found; n.row++ {
			for away := 0; away < len(d.columns) && !found; away++ {
				for _, c := range []int{want + away, want - away} {
					if c >= 0 && c < len(d.columns) && !taken[[2]int{c, n.row}] {
						n.column, found = c, true
						break
					}
				}
			}
			if found {
				taken[[2]int{n.column, n.row}] = true
				break
			}
		}
	}
}

// order sorts each column by the mean place of the neighbors, first those to the left and then those to the
// right.
func (d *drawing) order() {
	place := map[*node]float64{}
	number := func(column []*node) {
		for i, n := range column {
			place[n] = float64(i)
		}
	}
	sweep := func(column []*node, near func(*node) []*node) {
		want := map[*node]float64{}
		for _, n := range column {
			want[n] = mean(near(n), place[n], func(n *node) float64 { return place[n] })
		}
		sorted.By(column, func(a, b *node) int { return cmp.Compare(want[a], want[b]) })
		number(column)
	}
	for _, column := range d.columns {
		number(column)
	}
	for _, column := range d.columns {
		sweep(column, func(n *node) []*node { return n.before })
	}
	for _, column := range slices.Backward(d.columns) {
		sweep(column, func(n *node) []*node { return n.after })
	}
}

// mean returns the mean value of nodes, or what it is without any.
func mean(nodes []*node, none float64, value func(*node) float64) float64 {
	if len(nodes) == 0 {
		return none
	}
	sum := 0.0
	for _, n := range nodes {
		sum += value(n)
	}
	return sum / float64(len(nodes))
}

// setHeights makes a box as high as its lines and their labels need.
func (d *drawing) setHeights() {
	for _, n := range d.nodes {
		slots := max(slots(n.in, n), slots(n.out, n))
		n.h = max(boxHeight, portGap*(slots+1))
	}
}

// slots returns how many lines of text the lines on one side of a box need.
func slots(side []*line, n *node) (sum int) {
	for _, l := range side {
		sum += l.slots(n)
	}
	return sum
}

// slots returns how many of them a line needs: its labels stand at its step.
func (l *line) slots(n *node) int {
	if n.box.Kind == Place {
		return 1
	}
	return max(1, len(l.labels))
}

// setRows sets the heights of all boxes: each is as near to the middle of its neighbors as the others of its
// column permit.
func (d *drawing) setRows() {
	for _, column := range d.columns {
		y := 0
		for _, n := range column {
			n.y = y
			y += n.h + boxGap
		}
	}
	for _, column := range d.columns {
		align(column, func(n *node) []*node { return n.before })
	}
	for _, column := range slices.Backward(d.columns) {
		align(column, func(n *node) []*node { return n.after })
	}
	top := math.MaxInt
	for _, column := range d.columns {
		for _, n := range column {
			top = min(top, n.y)
		}
	}
	for _, column := range d.columns {
		for _, n := range column {
			n.y += margin - top
			d.height = max(d.height, n.y+n.h)
		}
	}
}

// align moves the boxes of a column with the least sum of squares, by pooling those that want the same place.
func align(column []*node, near func(*node) []*node) {
	type pool struct {
		at, weight float64
		count      int
	}
	var pools []pool
	offset := 0
	for _, n := range column {
		own := float64(n.middle())
		p := pool{mean(near(n), own, func(n *node) float64 { return float64(n.middle()) }) - float64(n.h/2+offset), 1, 1}
		if len(near(n)) == 0 {
			p.weight = 0.01 // it makes way for the others
		}
		for len(pools) > 0 && pools[len(pools)-1].at > p.at {
			last := pools[len(pools)-1]
			pools = pools[:len(pools)-1]
			weight := p.weight + last.weight
			p = pool{(p.at*p.weight + last.at*last.weight) / weight, weight, p.count + last.count}
		}
		pools = append(pools, p)
		offset += n.h + boxGap
	}
	i, offset := 0, 0
	for _, p := range pools {
		for range p.count {
			column[i].y = int(math.Round(p.at)) + offset
			offset += column[i].h + boxGap
			i++
		}
	}
}
