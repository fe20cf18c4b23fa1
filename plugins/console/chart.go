package console

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
)

// Size of the drawing of a chart. A browser stretches it to the width of the page.
const (
	chartWidth  = 600
	chartHeight = 120
	chartMargin = 3 // above and below, so that no line is cut
	lineLooks   = 6 // that the style sheet has
)

// chart is what the template gets of console.Series.
type chart struct {
	console.Series
	Top     string // the number at the upper edge
	Drawing template.HTML
	Ago     string // how long ago the first step began
	Numbers []numbers
}

// numbers are what is known of a line.
type numbers struct {
	Look                int // of the line
	Name                string
	Last, Highest, Mean console.Cell
	When                string // in which step the highest one was
}

// chartOf draws series.
func chartOf(s console.Series) chart {
	top := topOf(s)
	c := chart{Series: s, Top: value(top).Text, Ago: console.Short(s.Step*time.Duration(stepsOf(s))) + " ago", Numbers: numbersOf(s)}
	var b strings.Builder
	// A person reads the numbers in the table below it.
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" preserveAspectRatio="none" aria-hidden="true">`, chartWidth, chartHeight)
	for _, share := range []float64{0, 0.5, 1} {
		fmt.Fprintf(&b, `<path class="grid" d="M0 %.1fh%d"/>`, height(share), chartWidth)
	}
	for i, line := range s.Lines {
		fmt.Fprintf(&b, `<path class="line l%d" d="%s"/>`, i%lineLooks, path(line.Values, top))
	}
	b.WriteString("</svg>")
	c.Drawing = template.HTML(b.String()) //nolint:gosec // it has numbers alone
	return c
}

// height is where a share of the upper number is drawn.
func height(share float64) float64 {
	return chartHeight - chartMargin - share*(chartHeight-2*chartMargin)
}

// path draws what is known of a line. A number between two that are not known is a point.
func path(values []*float64, top float64) string {
	var b strings.Builder
	open := false
	for i, v := range values {
		if v == nil {
			open = false
			continue
		}
		x, y := (float64(i)+0.5)*chartWidth/float64(len(values)), height(max(0, *v/top))
		if open {
			fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		} else {
			fmt.Fprintf(&b, "M%.1f %.1fh0", x, y)
		}
		open = true
	}
	return b.String()
}

// highestOf returns the highest number, and 1 if none is above 0.
func highestOf(s console.Series) float64 {
	highest := 0.0
	for _, line := range s.Lines {
		for _, v := range line.Values {
			if v != nil {
				highest = max(highest, *v)
			}
		}
	}
	if highest <= 0 || math.IsInf(highest, 0) {
		return 1
	}
	return highest
}

// topOf returns a round number that is not below any number.
func topOf(s console.Series) float64 {
	most := highestOf(s)
	if most <= 1 {
		return math.Ceil(most*10) / 10 // a smaller one would read as 0.0
	}
	power := math.Pow(10, math.Floor(math.Log10(most)))
	for _, step := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8} {
		if most <= step*power {
			return step * power
		}
	}
	return 10 * power
}

func stepsOf(s console.Series) (most int) {
	for _, line := range s.Lines {
		most = max(most, len(line.Values))
	}
	return most
}

func numbersOf(s console.Series) []numbers {
	all := make([]numbers, len(s.Lines))
	for i, line := range s.Lines {
		one := numbers{Look: i % lineLooks, Name: line.Name, Last: console.Number(nil), Highest: console.Number(nil), Mean: console.Number(nil)}
		known, sum, highest := 0, 0.0, -1.0
		for n, v := range line.Values {
			if v == nil {
				continue
			}
			known++
			sum += *v
			if *v > highest {
				highest = *v
				one.When = s.Begin.Add(s.Step * time.Duration(n)).UTC().Format(time.TimeOnly)
			}
		}
		if known > 0 {
			one.Highest, one.Mean = value(highest), value(sum/float64(known))
		}
		if last := len(line.Values) - 1; last >= 0 && line.Values[last] != nil {
			one.Last = value(*line.Values[last])
		}
		all[i] = one
	}
	return all
}

// value shows a number as a rate is shown.
func value(v float64) console.Cell { return console.Rate(&v) }

// sparks are the heights of a character.
const sparks = "▁▂▃▄▅▆▇█"

// spark draws a line in so many characters of a terminal, each of which is the mean of what is known of its steps. The
// largest one is highest. Where nothing is known there is a space, and only 0 has the smallest one.
func spark(values []*float64, highest float64, width int) string {
	levels := []rune(sparks)
	width = min(width, len(values))
	var b strings.Builder
	for at := range width {
		known, sum := 0, 0.0
		for _, v := range values[at*len(values)/width : (at+1)*len(values)/width] {
			if v != nil {
				known++
				sum += *v
			}
		}
		switch {
		case known == 0:
			b.WriteByte(' ')
		case sum == 0:
			b.WriteRune(levels[0])
		default:
			b.WriteRune(levels[min(len(levels)-1, int(math.Ceil(max(0, sum/float64(known)/highest*float64(len(levels)-1)))))])
		}
	}
	return b.String()
}

// series writes a line per line: its name, its drawing, and its numbers.
func (t *textPage) series(s console.Series) {
	if len(s.Lines) == 0 {
		t.wrap(strings.TrimSpace(plain(s.Unit)+": "+plain(s.Empty)+" "+plain(s.Note)), textIndent)
		return
	}
	all := console.Table{Columns: console.Columns("Line", "Latest", "Highest", "Last "+console.Short(s.Step*time.Duration(stepsOf(s)))), Note: s.Note}
	highest := highestOf(s)
	for i, one := range numbersOf(s) {
		all.Rows = append(all.Rows, []console.Cell{console.Word(one.Name), one.Last, one.Highest, {Text: spark(s.Lines[i].Values, highest, sparkWidth)}})
	}
	t.wrap(plain(s.Unit)+":", "")
	t.table(all)
}

// sparkWidth leaves room for a name and numbers in 80 columns.
const sparkWidth = 30
