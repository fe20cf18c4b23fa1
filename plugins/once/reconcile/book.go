package reconcile

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
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
	maxLineBytes = 1 << 20 // of JSON
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

// LineError says which line of a book can't be read, and what was expected there.
type LineError struct {
	Path    string
	Line    int
	Problem string
}

// Error names the file, the line and what was expected.
func (e *LineError) Error() string { return fmt.Sprintf("%s, line %d: %s", e.Path, e.Line, e.Problem) }

// ReadBook calls each for every line of a book, in the order of the file. A book that begins with { has one JSON
// object per line, and any other is CSV with a header. Bad lines are a *LineError, and errors of each end the
// reading.
func ReadBook(path string, each func(Columns, Line) error) (c Columns, err error) {
	f, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := bufio.NewReaderSize(f, 64<<10)
	if start, _ := in.Peek(3); bytes.Equal(start, []byte("\xef\xbb\xbf")) { // of programs on Windows
		_, _ = in.Discard(3)
	}
	b := &book{path: path, each: each}
	if first, _ := in.Peek(1); len(first) == 1 && first[0] == '{' {
		err = b.readJSON(in)
	} else {
		err = b.readCSV(in)
	}
	return b.columns, err
}

type book struct {
	path    string
	each    func(Columns, Line) error
	columns Columns
	place   map[string]int // of the columns of a CSV file
}

func (b *book) wrong(line int, format string, args ...any) error {
	return &LineError{b.path, line, fmt.Sprintf(format, args...)}
}

// begin notes the columns, which a CSV file has in its header, and a file of JSON in its first line.
func (b *book) begin(line int, names []string) error {
	for _, name := range names {
		if slices.Contains(bookColumns(), name) {
			if b.columns.has(name) {
				return b.wrong(line, "want each column once, got %s twice", name)
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
		return b.wrong(line, "want a column %s (the idempotency key) or %s (of the effect in its group), got %s", columnKey, columnID, shorten(got))
	}
	b.columns.ByKey = byKey
	return nil
}

func (b *book) readCSV(in io.Reader) error {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	r.FieldsPerRecord = -1
	for {
		cells, err := r.Read()
		var wrong *csv.ParseError
		switch {
		case errors.Is(err, io.EOF) && b.place == nil:
			return b.wrong(1, "want a header with a column %s or %s, or one JSON object per line, and the book is empty", columnKey, columnID)
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &wrong):
			return b.wrong(wrong.Line, "want a line of CSV, where a cell that has a quote or a comma is in double quotes: %s", wrong.Err)
		case err != nil:
			return err
		}
		number, _ := r.FieldPos(0)
		if b.place == nil {
			if err := b.header(number, cells); err != nil {
				return err
			}
			continue
		}
		if want := len(b.columns.Used) + len(b.columns.Ignored); len(cells) != want {
			return b.wrong(number, "want %d cells, as in the header, got %d", want, len(cells))
		}
		if err := b.line(number, func(column string) (string, bool) {
			i, ok := b.place[column]
			if !ok {
				return "", false
			}
			return cells[i], true
		}); err != nil {
			return err
		}
	}
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

func (b *book) readJSON(in *bufio.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxLineBytes)
	number := 0
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		if len(text) == 0 {
			continue
		}
		var members map[string]any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&members); err != nil || members == nil {
			return b.wrong(number, "want one JSON object, got %s", shorten(string(text)))
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return b.wrong(number, "want one JSON object, got more after it: %s", shorten(string(text)))
		}
		if b.columns.Used == nil {
			names := make([]string, 0, len(members))
			for name := range members {
				names = append(names, name)
			}
			slices.Sort(names)
			if err := b.begin(number, names); err != nil {
				return err
			}
		}
		if err := b.object(number, members); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return b.wrong(number+1, "want one JSON object of at most %d bytes, and the line is longer", maxLineBytes)
	}
	return lines.Err()
}

func (b *book) object(number int, members map[string]any) error {
	texts := make(map[string]string, len(members))
	for _, column := range bookColumns() {
		switch v := members[column].(type) {
		case nil: // absent, or null
		case string:
			texts[column] = v
		case json.Number:
			texts[column] = v.String()
		default:
			return b.wrong(number, "want %s as a text or a whole number, got %T", column, v)
		}
	}
	want, other := columnID, columnKey
	if b.columns.ByKey {
		want, other = other, want
	}
	if texts[other] != "" {
		return b.wrong(number, "want %s in every line, as the first one has it, got %s", want, other)
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
			return b.wrong(number, "want %s of at most %d bytes, got %d", column, maxTextBytes, len(text))
		case !utf8.ValidString(text):
			return b.wrong(number, "want %s in UTF-8, got %q", column, shorten(text))
		}
		*to = strings.Clone(text) // otherwise it keeps the whole record in memory
	}
	if l.Text == "" {
		return b.wrong(number, "want %s in every line, and it is missing or empty", name)
	}
	if text, _ := cell(columnSum); text != "" {
		if l.Sum, err = strconv.ParseInt(text, 10, 64); err != nil {
			return b.wrong(number, "want %s as a whole number, got %q", columnSum, shorten(text))
		}
		l.HasSum = true
	}
	if text, _ := cell(columnTimes); text != "" {
		if l.Times, err = strconv.ParseInt(text, 10, 32); err != nil || l.Times < 1 {
			return b.wrong(number, "want %s as a whole number from 1 on, got %q", columnTimes, shorten(text))
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
