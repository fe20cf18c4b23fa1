package console

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	textColumns = 80 // of a terminal whose width is not known
	leastWidth  = 40 // a narrower one cuts the lines by itself
	mostWidth   = 500
	textIndent  = "    "
)

// textFormat is how a client wants a page as text.
type textFormat struct {
	width int
	color bool
}

// wantsText returns the format of a request whose header Accept begins with text/plain, such as
// "text/plain; columns=100; color=1".
func wantsText(r *http.Request) (textFormat, bool) {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	kind, parameters, err := mime.ParseMediaType(first)
	if err != nil || kind != "text/plain" {
		return textFormat{}, false
	}
	f := textFormat{width: textColumns, color: parameters["color"] == "1"}
	if n, err := strconv.Atoi(parameters["columns"]); err == nil {
		f.width = min(max(n, leastWidth), mostWidth)
	}
	return f, true
}

// textPage writes a page for a terminal. No line is wider than the terminal.
type textPage struct {
	bytes.Buffer
	textFormat
}

func (f textFormat) page(v view) []byte {
	t := textPage{textFormat: f}
	right := v.Instance + "  " + v.Time + " UTC"
	title := cut(plain(v.Title), max(1, t.width-utf8.RuneCountInString(right)-2))
	gap := max(1, t.width-utf8.RuneCountInString(title)-utf8.RuneCountInString(right))
	t.line(t.bold(title) + strings.Repeat(" ", gap) + plain(right))
	for _, p := range v.Panels {
		t.panel(p)
	}
	return t.Bytes()
}

func (t *textPage) panel(p shown) {
	if _, drawing := p.Block.(console.HTML); drawing {
		return
	}
	t.line("")
	if p.Title != "" {
		t.line(t.bold(cut(plain(p.Title), t.width)))
	}
	if p.State == stateAsked {
		t.wrap("It reads the servers only when a person asks for it, with the button of the page.", "")
	}
	if p.Problem != "" {
		t.wrap(t.mark(operate.Fail)+"not known: "+plain(p.Problem), "  ")
	}
	if p.Block == nil {
		return
	}
	if old := age(p.At); old != "" {
		t.line("These values are " + old + ".")
	}
	t.block(p.Block)
	if p.Reveal.Problem != "" {
		t.wrap(t.mark(operate.Fail)+"not revealed: "+plain(p.Reveal.Problem), textIndent)
	}
	if p.Reveal.Masked > 0 && p.Reveal.ReadOnly {
		t.wrap(fmt.Sprintf("Masked values: %d. This console only reads, so it reveals nothing.", p.Reveal.Masked), "")
	} else if p.Reveal.Masked > 0 {
		t.wrap(fmt.Sprintf("Masked values: %d. The page reveals them to a person with the role %s, with a reason that is recorded.", p.Reveal.Masked, p.Reveal.Needs), "")
	}
}

func (t *textPage) block(b console.Block) {
	switch b := b.(type) {
	case console.Table:
		t.table(b)
	case console.Stats:
		t.fields(b)
	case console.Series:
		t.series(b)
	case console.Record:
		t.fields(b.Fields)
		for _, f := range b.Folds {
			t.wrap(plain(f.Title)+":", "")
			for _, line := range strings.Split(plainLines(f.Text), "\n") {
				t.wrap(textIndent+line, textIndent)
			}
		}
	case console.Text:
		t.wrap(plain(string(b)), "")
	case console.Checks:
		t.checks(b)
	case console.Answer:
		for _, line := range b.Lines {
			t.wrap(plain(line), "")
		}
		for _, table := range b.Tables {
			t.table(cellsOf(table))
		}
		for _, note := range b.Notes {
			t.wrap(plain(note), "")
		}
		t.checks(b.Checks)
	case console.Blocks:
		for _, one := range b {
			t.block(one)
		}
	}
}

func (t *textPage) fields(all console.Stats) {
	longest := 0
	for _, one := range all {
		longest = max(longest, utf8.RuneCountInString(plain(one.Name)))
	}
	for _, one := range all {
		name := pad(plain(one.Name), longest, false)
		t.wrapIn(name+"  "+t.mark(one.Cell.Level)+plain(one.Cell.Text), strings.Repeat(" ", min(longest+2, t.width/2)), one.Cell.Level)
	}
}

func (t *textPage) checks(all []operate.Check) {
	for _, c := range all {
		t.wrapIn(fmt.Sprintf("%s%s %s: %s", t.mark(c.Level), levelText(c.Level), plain(c.Name), plain(c.Text)), textIndent, c.Level)
		if c.Remedy != "" {
			t.wrap(textIndent+"To do: "+plain(c.Remedy)+".", textIndent)
		}
	}
}

// table writes a line per row. If it is too wide, its longest columns of words move to lines of their own
// below the row, and what is still too wide is cut.
func (t *textPage) table(all console.Table) {
	if len(all.Rows) == 0 {
		t.wrap(plain(all.Empty), "")
	} else {
		t.rows(all)
	}
	if all.Note != "" {
		t.wrap(plain(all.Note), "")
	}
	if next := inside(all.Next); next != "" {
		t.wrap("More rows: "+plain(next), textIndent)
	}
}

func (t *textPage) rows(all console.Table) {
	widths, words := make([]int, len(all.Columns)), make([]bool, len(all.Columns))
	for i, c := range all.Columns {
		widths[i] = utf8.RuneCountInString(plain(c.Title))
	}
	for _, row := range all.Rows {
		for i, cell := range row[:min(len(row), len(widths))] {
			widths[i] = max(widths[i], utf8.RuneCountInString(t.mark(cell.Level)+plain(cell.Text)))
			words[i] = words[i] || !cell.Right
		}
	}
	var below []int
	for i := range widths { // several lines have no place beside the numbers
		if i > 0 && slices.ContainsFunc(all.Rows, func(row []console.Cell) bool { return i < len(row) && len(row[i].Lines) > 0 }) {
			below = append(below, i)
		}
	}
	inLine := func() (columns []int, width int) {
		for i, w := range widths {
			if !slices.Contains(below, i) {
				columns, width = append(columns, i), width+w+2
			}
		}
		return columns, width - 2
	}
	columns, width := inLine()
	for width > t.width {
		widest := -1
		for _, i := range columns[1:] {
			if words[i] && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break // numbers alone, and the name
		}
		below = append(below, widest)
		columns, width = inLine()
	}
	if over := width - t.width; over > 0 {
		widths[0] = max(8, widths[0]-over)
	}
	slices.Sort(below)
	t.row(columns, widths, func(i int) (string, operate.Level, bool) { return plain(all.Columns[i].Title), "", !words[i] }, true)
	for _, row := range all.Rows {
		t.row(columns, widths, func(i int) (string, operate.Level, bool) {
			if i >= len(row) {
				return "", "", false
			}
			return plain(row[i].Text), row[i].Level, !words[i]
		}, false)
		t.below(all.Columns, below, row)
	}
}

// below writes the cells of a row that have no place in its line. Those without a value are left out.
func (t *textPage) below(columns []console.Column, below []int, row []console.Cell) {
	var parts []string
	worst := operate.Level("")
	for _, i := range below {
		if i >= len(row) || len(row[i].Lines) > 0 || row[i].Text == "" || row[i].Text == "–" || row[i].Text == "-" {
			continue
		}
		level := row[i].Level
		parts = append(parts, plain(columns[i].Title)+": "+t.mark(level)+plain(row[i].Text))
		if level == operate.Fail || level == operate.Warn && worst == "" {
			worst = level
		}
	}
	if len(parts) > 0 {
		t.wrapIn(textIndent+strings.Join(parts, " · "), textIndent, worst)
	}
	for _, i := range below {
		if i < len(row) {
			for _, line := range row[i].Lines {
				t.wrapIn(textIndent+plain(columns[i].Title)+": "+t.mark(line.Level)+plain(line.Text), textIndent, line.Level)
			}
		}
	}
}

// row writes cells side by side. Colors take no place, so they come after the padding.
func (t *textPage) row(columns, widths []int, cell func(int) (text string, level operate.Level, right bool), head bool) {
	left := t.width
	var line strings.Builder
	for n, i := range columns {
		text, level, right := cell(i)
		text = cut(t.mark(level)+text, widths[i])
		if n < len(columns)-1 || right {
			text = pad(text, widths[i], right)
		}
		if n > 0 {
			line.WriteString("  ")
			left -= 2
		}
		if text = cut(text, max(0, left)); text == "" {
			continue
		}
		left -= utf8.RuneCountInString(text)
		if head {
			text = t.bold(text)
		}
		line.WriteString(t.paint(text, level))
	}
	t.line(strings.TrimRight(line.String(), " "))
}

// wrap writes a text over as many lines as it needs. All but the first begin with the indent.
func (t *textPage) wrap(text, indent string) { t.wrapIn(text, indent, "") }

// wrapIn is wrap in the color of a level.
func (t *textPage) wrapIn(text, indent string, level operate.Level) {
	runes := []rune(text)
	for before := ""; len(runes) > 0; before = indent {
		n := lineOf(runes, t.width-len(before))
		t.line(t.paint(before+string(runes[:n]), level))
		for runes = runes[n:]; len(runes) > 0 && runes[0] == ' '; {
			runes = runes[1:]
		}
	}
}

// lineOf returns how many runes of a text are its first line. A word that is longer than a line is cut.
func lineOf(text []rune, width int) int {
	if len(text) <= width {
		return len(text)
	}
	indent := 0
	for indent < width && text[indent] == ' ' {
		indent++
	}
	for at := width; at > indent; at-- {
		if text[at] == ' ' {
			return at
		}
	}
	return width
}

func (t *textPage) line(text string) {
	t.WriteString(text)
	t.WriteByte('\n')
}

// mark begins what is not in order. Without it, a terminal without colors would not show that.
func (t *textPage) mark(level operate.Level) string {
	switch level {
	case operate.Warn:
		return "! "
	case operate.Fail:
		return "!! "
	}
	return ""
}

func (t *textPage) bold(text string) string { return t.sgr(text, "1") }

func (t *textPage) paint(text string, level operate.Level) string {
	code := map[operate.Level]string{operate.OK: "32", operate.Warn: "33", operate.Fail: "31"}[level]
	return t.sgr(text, code)
}

func (t *textPage) sgr(text, code string) string {
	if !t.color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func pad(text string, width int, right bool) string {
	spaces := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if right {
		return spaces + text
	}
	return text + spaces
}

// cut shortens a text to a width, with an ellipsis as its last character.
func cut(text string, width int) string {
	runes := []rune(text)
	switch {
	case len(runes) <= width:
		return text
	case width < 1:
		return ""
	}
	return string(runes[:width-1]) + "…"
}
