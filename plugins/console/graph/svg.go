package graph

import (
	"encoding/xml"
	"fmt"
	"html/template"
	"strings"
	"unicode"
)

// SVG returns the drawing, the same one for equal graphs. It refuses a graph with a mistake, such as an edge to
// a box that does not exist, and then names all of them.
func (g Graph) SVG() (template.HTML, error) {
	if err := g.check(); err != nil {
		return "", err
	}
	about := ""
	if len(g.Boxes) > most && !g.whole {
		about = fmt.Sprintf(". Each plugin is one box, because there are %d boxes", len(g.Boxes))
		g = g.collapsed()
	}
	steps := 0
	for _, b := range g.Boxes {
		if b.Kind == Step {
			steps++
		}
	}
	d := layOut(g)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="group" aria-label="Pipeline, steps: %d, places: %d%s" viewBox="0 0 %d %d" width="%d" height="%d" fill="currentColor">`+"\n",
		steps, len(g.Boxes)-steps, about, d.width, d.height, d.width, d.height)
	for _, l := range d.lines {
		l.write(&b)
	}
	for _, column := range d.columns {
		for _, n := range column {
			if !n.passing {
				n.write(&b)
			}
		}
	}
	for _, n := range d.nodes {
		if n.bottom {
			n.write(&b)
		}
	}
	b.WriteString("</svg>\n")
	return template.HTML(b.String()), nil
}

func (l *line) write(b *strings.Builder) {
	var names []string
	for _, e := range l.edges {
		name := map[Way]string{Forward: "", Retry: "retry", Dead: "dead letters"}[e.Way]
		if e.Label != "" && name != "" {
			name += " "
		}
		if name += e.Label; name != "" {
			names = append(names, name)
		}
	}
	title := "from " + l.from.box.Title + " to " + l.to.box.Title
	if len(names) > 0 {
		title += ": " + strings.Join(names, ", ")
	}
	fmt.Fprintf(b, `<g class="edge %s" data-from="%s" data-to="%s"><title>%s</title>`, l.way, escape(l.from.box.ID), escape(l.to.box.ID), escape(title))
	fmt.Fprintf(b, `<path class="line" fill="none" stroke="currentColor" d="%s"/>`, l.path())
	fmt.Fprintf(b, `<path class="tip" d="M%d %dl-%d -4v8z"/>`, l.to.x, l.end, tip)
	x, y, anchor := l.from.x+l.from.w+6, l.start, "start"
	if l.from.box.Kind == Place {
		x, y, anchor = l.to.x-tip-4, l.end, "end"
	}
	for i, text := range l.labels {
		fmt.Fprintf(b, `<text class="label" font-size="10" text-anchor="%s" x="%d" y="%d">%s</text>`, anchor, x, y-4+i*portGap, escape(shorten(text, labelMax)))
	}
	b.WriteString("</g>\n")
}

func (n *node) write(b *strings.Builder) {
	box := n.box
	if box.State == "" {
		box.State = Unknown
	}
	title := strings.TrimSpace(box.Type+" "+box.Title) + ", " + string(box.State)
	if box.Why != "" {
		title += ": " + box.Why
	}
	for _, number := range box.Numbers {
		title += "; " + number.Name + " " + number.Value
	}
	element := "g"
	link := ""
	if box.Link != "" {
		element, link = "a", ` href="`+escape(box.Link)+`"`
	}
	fmt.Fprintf(b, `<%s class="box %s %s" data-id="%s"%s><title>%s</title>`, element, box.Kind, box.State, escape(box.ID), link, escape(title))
	radius := 3
	if box.Kind == Place {
		radius = 16
	}
	fmt.Fprintf(b, `<rect fill="none" stroke="currentColor" x="%d" y="%d" width="%d" height="%d" rx="%d"/>`, n.x, n.y, n.w, n.h, radius)
	text := func(class string, size, x, y int, anchor, s string) {
		if s != "" {
			fmt.Fprintf(b, `<text class="%s" font-size="%d" text-anchor="%s" x="%d" y="%d">%s</text>`, class, size, anchor, x, y, escape(s))
		}
	}
	left, top := n.x+12, n.y+(n.h-boxHeight)/2
	text("type", 10, left, top+17, "start", shorten(box.Type, 24))
	text("state", 10, n.x+n.w-12, top+17, "end", string(box.State))
	text("title", 12, left, top+35, "start", shorten(box.Title, 30))
	for i, number := range box.Numbers[:min(4, len(box.Numbers))] {
		text("number", 11, left+i*quarter, top+53, "start", shorten(number.Value, 9))
		text("name", 9, left+i*quarter, top+65, "start", shorten(number.Name, 11))
	}
	text("why", 10, left, top+83, "start", cut(box.Why, 34))
	fmt.Fprintf(b, "</%s>\n", element)
}

// escape makes a text of anybody safe in an element or attribute. What XML can't hold, and what would change
// the direction of the text around it, becomes U+FFFD.
func escape(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder has no errors
	return b.String()
}

// shorten returns a name that fits, without what is in its middle: names often differ at their ends.
func shorten(s string, most int) string {
	runes := []rune(strings.Join(strings.Fields(s), " "))
	if letters(string(runes)) <= most {
		return string(runes)
	}
	front, back := 0, len(runes)
	for used := 1; front < back; {
		at := front
		if front > len(runes)-back {
			at = back - 1
		}
		if used += width(runes[at]); used > most {
			break
		}
		if at == front {
			front++
		} else {
			back--
		}
	}
	return string(runes[:front]) + "…" + string(runes[back:])
}

// cut returns the beginning of a sentence that fits.
func cut(s string, most int) string {
	runes := []rune(strings.Join(strings.Fields(s), " "))
	if letters(string(runes)) <= most {
		return string(runes)
	}
	used, end := 1, 0
	for used+width(runes[end]) <= most {
		used += width(runes[end])
		end++
	}
	return string(runes[:end]) + "…"
}

// letters returns the width of a text in letters.
func letters(s string) (sum int) {
	for _, r := range s {
		sum += width(r)
	}
	return sum
}

// width returns the width of a letter. From Hangul on most are twice as wide as Latin ones.
func width(r rune) int {
	if r >= 0x1100 && r != '…' && !(r >= 0x2000 && r < 0x2e80) {
		return 2
	}
	return 1
}
