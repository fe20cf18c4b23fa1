package console

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// Block is what a panel shows: Table, Stats, Series, Record, Comparison, Text, Checks, Answer, Find, HTML, or
// several as Blocks.
type Block interface {
	// JSON is the block for programs, as a value that encoding/json takes.
	JSON() any
}

// Unknown is how a number is written that is not known.
const Unknown = "unknown"

// Cell is a value in a table or in Stats.
type Cell struct {
	Text string // for people; it may have any content
	// Data is the value for programs. Nil: null, which means that it is not known.
	Data any
	// Link is the address of a page below the root, such as orders/order?id=7. Empty: none.
	Link string
	// Trace is the id of a trace, whose address the settings of the console may have. The text then links to it.
	Trace string
	// Level colors the cell. Empty: none.
	Level operate.Level
	// Right aligns the cell as a number.
	Right bool
	// Lines are shown in place of the text, one below the other: see the function Lines.
	Lines []Cell
}

// Lines returns a cell with a line per cell, such as each reason of a state. It has the worst of their levels, and
// programs get the texts with semicolons between them.
func Lines(cells ...Cell) Cell {
	if len(cells) == 1 {
		return cells[0]
	}
	all := Cell{Lines: cells}
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = c.Text
		if c.Level.Worse(all.Level) {
			all.Level = c.Level
		}
	}
	all.Text = strings.Join(texts, "; ")
	all.Data = all.Text
	return all
}

// Word returns a cell with a text.
func Word(text string) Cell { return Cell{Text: text, Data: text} }

// Trace returns a cell with the id of a trace, which the console links if it knows where traces are shown.
func Trace(id string) Cell { return Cell{Text: id, Data: id, Trace: id} }

// Number returns a cell with a number, and for nil one that says that it is not known.
func Number(n *int64) Cell {
	if n == nil {
		return Cell{Text: Unknown, Right: true}
	}
	return Cell{Text: thousands(*n), Data: *n, Right: true}
}

// Count returns a cell with a number that is known.
func Count[N int | int32 | int64](n N) Cell {
	whole := int64(n)
	return Number(&whole)
}

// Rate returns a cell with a number per second, and for nil one that says that it is not known.
func Rate(perSecond *float64) Cell {
	if perSecond == nil {
		return Number(nil)
	}
	return Cell{Text: operate.PerSecond(*perSecond, thousands), Data: *perSecond, Right: true}
}

// Moment returns a cell with a time and how long ago it was. For the zero time it is empty, because there
// was no such moment.
func Moment(t time.Time) Cell {
	if t.IsZero() {
		return Cell{Text: "–"}
	}
	return Cell{Text: Short(time.Since(t)) + " ago", Data: t.UTC().Format(time.RFC3339)}
}

// Until returns a cell with a time that is still to come.
func Until(t time.Time) Cell {
	text := "now"
	if left := time.Until(t); left >= time.Second {
		text = "in " + Short(left)
	}
	return Cell{Text: text, Data: t.UTC().Format(time.RFC3339)}
}

// At returns the cell with a link to a page.
func (c Cell) At(link string) Cell {
	c.Link = link
	return c
}

// In returns the cell with the color of a level.
func (c Cell) In(level operate.Level) Cell {
	c.Level = level
	return c
}

// Short writes a duration in one or two units, as 3m20s. What is less than a second is 0s.
func Short(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < time.Hour:
		return withoutZero(d.Truncate(time.Second).String())
	case d < 2*day:
		return withoutZero(d.Truncate(time.Minute).String())
	}
	return fmt.Sprintf("%dd", d/day)
}

// withoutZero cuts the seconds of a duration that has none, but not all of it.
func withoutZero(text string) string {
	if strings.HasSuffix(text, "m0s") {
		return strings.TrimSuffix(text, "0s")
	}
	return text
}

func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Column is a column of a table.
type Column struct {
	Name  string // the key in the JSON
	Title string // for people
}

// Columns returns columns of titles. Their names are the titles in lower case with _ for spaces.
func Columns(titles ...string) []Column {
	all := make([]Column, len(titles))
	for i, title := range titles {
		all[i] = Column{strings.ReplaceAll(strings.ToLower(title), " ", "_"), title}
	}
	return all
}

// Table has a row per thing. Each row has a cell per column.
type Table struct {
	Columns []Column
	Rows    [][]Cell
	Empty   string // the sentence in place of a table without rows
	Note    string // a sentence below the table
	// Next is the address of the page with the rows that follow, like Cell.Link. Empty: there are none.
	Next string
}

// JSON returns the rows as objects.
func (t Table) JSON() any {
	rows := make([]map[string]any, len(t.Rows))
	for i, row := range t.Rows {
		rows[i] = map[string]any{}
		for c, cell := range row {
			if c < len(t.Columns) {
				rows[i][t.Columns[c].Name] = cell.Data
			}
		}
	}
	return rows
}

// Stat is a number with its name.
type Stat struct {
	Name string
	Cell Cell
}

// Stats are a few numbers side by side.
type Stats []Stat

// JSON returns an object.
func (s Stats) JSON() any {
	object := map[string]any{}
	for _, one := range s {
		object[Columns(one.Name)[0].Name] = one.Cell.Data
	}
	return object
}

// Series are numbers over time, in steps of equal length. They are drawn as lines from 0 up, with a table of what is
// known of each line.
type Series struct {
	Unit  string // of all numbers, such as "Messages handled per second"
	Begin time.Time
	Step  time.Duration
	Lines []Line
	Empty string // the sentence in place of a drawing without lines
	Note  string // a sentence below the drawing
}

// Line is one line of Series.
type Line struct {
	Name   string
	Values []*float64 // of each step, 0 or more. Nil: not known, which is a gap in the line and not 0
}

// JSON returns an object with the lines and when their steps begin.
func (s Series) JSON() any {
	type line struct {
		Name   string     `json:"name"`
		Values []*float64 `json:"values"`
	}
	lines := make([]line, len(s.Lines))
	for i, one := range s.Lines {
		lines[i] = line(one)
	}
	return map[string]any{"unit": s.Unit, "begin": s.Begin.UTC().Format(time.RFC3339), "step_seconds": s.Step.Seconds(), "lines": lines, "note": s.Note}
}

// Fold is what is shown when a person opens it: a text, or the payload or headers of a message. Fields of a
// payload and headers that may be secret are masked by the console (plugins.console.masked_fields), as is what
// any text has of them.
type Fold struct {
	Title string
	Text  string // it may have any content and length
	// Payload is in place of Text, if it is not nil. What is no JSON is masked as a whole.
	Payload []byte
	Headers map[string]string // in place of Text, if it is not nil
}

// Record is one thing with its fields, and with what is folded. The console masks fields by their names, too.
type Record struct {
	Fields Stats
	Folds  []Fold
}

// JSON returns an object with the fields and the texts.
func (r Record) JSON() any {
	object, _ := r.Fields.JSON().(map[string]any)
	for _, f := range r.Folds {
		var value any = f.Text
		switch { // the console has made texts of them, without what it masks
		case f.Headers != nil:
			value = f.Headers
		case f.Payload != nil:
			value = string(f.Payload)
		}
		object[Columns(f.Title)[0].Name] = value
	}
	return object
}

// Comparison has two things of one kind side by side. The console makes a table of it, which says of each field, of
// each header and of each member of a JSON payload whether both are the same, and masks it as it masks a Record.
type Comparison struct {
	Titles [2]string
	Sides  [2]Record
}

// JSON returns the two things.
func (c Comparison) JSON() any { return []any{c.Sides[0].JSON(), c.Sides[1].JSON()} }

// Text is a paragraph.
type Text string

// JSON returns the text.
func (t Text) JSON() any { return string(t) }

// Checks are lines about what should be in order, the worst first if their author has sorted them.
type Checks []operate.Check

// JSON returns the checks.
func (c Checks) JSON() any {
	if c == nil {
		return []operate.Check{}
	}
	return []operate.Check(c)
}

// Answer is the answer of a report.
type Answer operate.Answer

// JSON returns what the command of the report writes with --json.
func (a Answer) JSON() any { return a.Value }

// Find is a form whose values become the address of a page, such as the id of a row that a person looks for.
type Find struct {
	Page   string          // the path of the page
	Fields []operate.Field // Name, Default for what is filled in already, and Required
}

// JSON returns the page and the names of the values in its address.
func (f Find) JSON() any {
	names := make([]string, len(f.Fields))
	for i, field := range f.Fields {
		names[i] = field.Name
	}
	return map[string]any{"page": f.Page, "fields": names}
}

// HTML is a block of its own making, such as a drawing. Make it with html/template, so that foreign text
// stays text. The policy of the console permits no scripts but its own file, and no style attributes.
type HTML struct {
	Source template.HTML
	Data   any // for programs
}

// JSON returns the data.
func (h HTML) JSON() any { return h.Data }

// Blocks are shown one below the other.
type Blocks []Block

// JSON returns a list.
func (bs Blocks) JSON() any {
	list := make([]any, len(bs))
	for i, b := range bs {
		list[i] = b.JSON()
	}
	return list
}
