package reconcile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/internal/linefile"
	"github.com/millrace-io/millrace/internal/sorted"
)

// The columns of a book. One of columnKey and columnID is required.
const (
	columnKey     = "key"     // the idempotency key
	columnID      = "id"      // the id of the effect in its group
	columnGroup   = "group"   // the group of the effect
	columnReceipt = "receipt" // the far side's name of the effect
	columnSum     = "sum"     // of one execution, a whole number in the unit of the kind
	columnTimes   = "times"   // how often it was executed; 1 without the column
)

func bookColumns() []string {
	return []string{columnKey, columnID, columnGroup, columnReceipt, columnSum, columnTimes}
}

const (
	maxTextBytes = 4 << 10 // of a key, an id or a receipt
)

// Line is one line of a book.
type Line struct {
	Number  int    // in the file, from 1; of a CSV record that spans lines, the first one
	Text    string // the idempotency key, or the id: see Columns.ByKey
	Group   string // empty: the book has no groups
	Receipt string // empty: the book does not say
	Sum     int64  // of one execution
	HasSum  bool
	Times   int64 // at least 1
}

// Columns are what a book has.
type Columns struct {
	// ByKey says that Line.Text is the idempotency key, and not the id.
	ByKey bool `json:"by_key"`
	// Used are the columns that are compared, and Ignored all others, in the order of the file.
	Used    []string `json:"used"`
	Ignored []string `json:"ignored"`
}

func (c *Columns) has(column string) bool { return slices.Contains(c.Used, column) }

// ReadBook calls each for every line of a book, in the order of the file. Bad lines are a *linefile.Error, and errors of each
// end the reading.
func ReadBook(path string, each func(Columns, Line) error) (Columns, error) {
	b := &book{each: each}
	b.File = linefile.File{Path: path, Header: "a column " + columnKey + " or " + columnID, Object: b.object, Row: b.row}
	err := b.Read()
	return b.columns, err
}

type book struct {
	linefile.File
	each    func(Columns, Line) error
	columns Columns
	place   map[string]int // of the columns of a CSV file
}

// begin notes the columns, which a CSV file has in its header, and a file of JSON in its first line.
func (b *book) begin(line int, names []string) error {
	for _, name := range names {
		if slices.Contains(bookColumns(), name) {
			if b.columns.has(name) {
				return b.Wrong(line, "want each column once, got %s twice", name)
			}
			b.columns.Used = append(b.columns.Used, name)
		} else {
			b.columns.Ignored = append(b.columns.Ignored, name)
		}
	}
	byKey, byID := b.columns.has(columnKey), b.columns.has(columnID)
	if byKey == byID {
		got := "neither: " + strings.Join(names, ", ")
		if byKey {
			got = "both"
		}
		return b.Wrong(line, "want a column %s (the idempotency key) or %s (of the effect in its group), got %s", columnKey, columnID, shorten(got))
	}
	b.columns.ByKey = byKey
	return nil
}

func (b *book) row(number int, cells []string) error {
	if b.place == nil {
		return b.header(number, cells)
	}
	if want := len(b.columns.Used) + len(b.columns.Ignored); len(cells) != want {
		return b.Wrong(number, "want %d cells, as in the header, got %d", want, len(cells))
	}
	return b.line(number, func(column string) (string, bool) {
		i, ok := b.place[column]
		if !ok {
			return "", false
		}
		return cells[i], true
	})
}

func (b *book) header(number int, cells []string) error {
	names := make([]string, len(cells))
	b.place = make(map[string]int, len(cells))
	for i, cell := range cells {
		names[i] = strings.ToLower(strings.TrimSpace(cell))
		b.place[names[i]] = i
	}
	return b.begin(number, names)
}

func (b *book) object(number int, text []byte) error {
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&members); err != nil || members == nil {
		return b.Wrong(number, "want one JSON object, got %s", shorten(string(text)))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return b.Wrong(number, "want one JSON object, got more after it: %s", shorten(string(text)))
	}
	if b.columns.Used == nil {
		if err := b.begin(number, sorted.Of(maps.Keys(members), strings.Compare)); err != nil {
			return err
		}
	}
	texts := make(map[string]string, len(members))
	for _, column := range bookColumns() {
		switch v := members[column].(type) {
		case nil: // absent, or null
		case string:
			texts[column] = v
		case json.Number:
			texts[column] = v.String()
		default:
			return b.Wrong(number, "want %s as a text or a whole number, got %T", column, v)
		}
	}
	want, other := columnID, columnKey
	if b.columns.ByKey {
		want, other = other, want
	}
	if texts[other] != "" {
		return b.Wrong(number, "want %s in every line, as the first one has it, got %s", want, other)
	}
	for column := range texts { // a later line may have what the first one has not
		if !b.columns.has(column) {
			b.columns.Used = append(b.columns.Used, column)
		}
	}
	return b.line(number, func(column string) (string, bool) { text, ok := texts[column]; return text, ok })
}

func (b *book) line(number int, cell func(column string) (string, bool)) (err error) {
	l := Line{Number: number, Times: 1}
	name := columnID
	if b.columns.ByKey {
		name = columnKey
	}
	for column, to := range map[string]*string{name: &l.Text, columnGroup: &l.Group, columnReceipt: &l.Receipt} {
		text, _ := cell(column)
		switch {
		case len(text) > maxTextBytes:
			return b.Wrong(number, "want %s of at most %d bytes, got %d", column, maxTextBytes, len(text))
		case !utf8.ValidString(text):
			return b.Wrong(number, "want %s in UTF-8, got %q", column, shorten(text))
		}
		*to = strings.Clone(text) // otherwise it keeps the whole record in memory
	}
	if l.Text == "" {
		return b.Wrong(number, "want %s in every line, and it is missing or empty", name)
	}
	if text, _ := cell(columnSum); text != "" {
		if l.Sum, err = strconv.ParseInt(text, 10, 64); err != nil {
			return b.Wrong(number, "want %s as a whole number, got %q", columnSum, shorten(text))
		}
		l.HasSum = true
	}
	if text, _ := cell(columnTimes); text != "" {
		if l.Times, err = strconv.ParseInt(text, 10, 32); err != nil || l.Times < 1 {
			return b.Wrong(number, "want %s as a whole number from 1 on, got %q", columnTimes, shorten(text))
		}
	}
	return b.each(b.columns, l)
}

// shorten bounds a text in an error, since it may be anything.
func shorten(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}
