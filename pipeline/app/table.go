package app

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// TableWriter aligns columns, which tabs separate. On a terminal that is narrower than the table it breaks the
// widest cells, and where even that leaves too little, it shows each row as a record with a line per column.
// Anything that is no terminal gets whole lines. Build it with Table.
type TableWriter struct {
	out     io.Writer
	columns int // of the terminal; 0: it is none, or its width is not known
	text    bytes.Buffer
}

// Table returns a writer of tables. Its caller flushes it.
func Table(out io.Writer) *TableWriter {
	w := &TableWriter{out: out}
	if f, ok := out.(*os.File); ok && isTerminal(f) {
		w.columns, _, _ = term.GetSize(int(f.Fd())) //nolint:gosec // a file descriptor is small
	}
	return w
}

// Write implements io.Writer. It never fails.
func (w *TableWriter) Write(p []byte) (int, error) { return w.text.Write(p) }

// Flush writes the table, which begins again.
func (w *TableWriter) Flush() error {
	text := aligned(w.text.String())
	if w.columns > 0 && widest(text) > w.columns {
		text = fitted(w.text.String(), w.columns)
	}
	w.text.Reset()
	_, err := io.WriteString(w.out, text)
	return err
}

const (
	tableGap = 2 // between two columns
	// A column that breaks is at least that wide. Narrower ones are harder to read than records.
	leastColumn = 12
)

func aligned(text string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, tableGap, ' ', 0)
	_, _ = io.WriteString(w, text)
	_ = w.Flush() // a strings.Builder takes everything
	return out.String()
}

func widest(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(strings.TrimRight(line, "\n ")))
	}
	return columns
}

// fitted aligns each block of adjacent lines with tabs for itself. The terminal breaks other lines.
func fitted(text string, columns int) string {
	var out strings.Builder
	var block [][]string
	end := func() {
		out.WriteString(fitBlock(block, columns))
		block = nil
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "\t") {
			block = append(block, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
			continue
		}
		end()
		out.WriteString(line)
	}
	end()
	return out.String()
}

func fitBlock(rows [][]string, columns int) string {
	limits, fits := columnLimits(rows, columns)
	if !fits && len(rows) > 1 && isHeader(rows[0]) {
		return records(rows[0], rows[1:], columns)
	}
	var broken strings.Builder
	for _, row := range rows {
		cells, height := make([][]string, len(row)), 0
		for i, cell := range row {
			cells[i] = breakCell(cell, limits[i])
			height = max(height, len(cells[i]))
		}
		for n := range height {
			for i, pieces := range cells {
				if i > 0 {
					broken.WriteByte('\t')
				}
				if n < len(pieces) {
					broken.WriteString(pieces[n])
				}
			}
			broken.WriteByte('\n')
		}
	}
	return withoutTrailing(aligned(broken.String()))
}

// columnLimits returns a width for each column, so that they fit together. It spares ids, which a person copies,
// and breaks words only when breaking between them is not enough. It reports false when the columns would be
// narrower than leastColumn.
func columnLimits(rows [][]string, columns int) (limits []int, fits bool) {
	var widths, words []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, words = append(widths, 0), append(words, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			for word := range strings.FieldsSeq(cell) {
				words[i] = max(words[i], utf8.RuneCountInString(word))
			}
		}
	}
	room := columns - tableGap*(len(widths)-1)
	limits = make([]int, len(widths))
	for _, whole := range []bool{true, false} {
		for limit := max(room, leastColumn); limit >= leastColumn; limit-- {
			sum := 0
			for i, width := range widths {
				limits[i] = min(width, limit)
				if whole {
					limits[i] = min(width, max(limit, words[i]))
				}
				sum += limits[i]
			}
			if sum <= room {
				return limits, true
			}
		}
	}
	return limits, false
}

// isHeader reports whether a row has the names of columns, which are in capitals.
func isHeader(row []string) bool {
	text := strings.Join(row, "")
	return text != "" && text == strings.ToUpper(text) && text != strings.ToLower(text)
}

// records shows each row with a line per column that has a value.
func records(header []string, rows [][]string, columns int) string {
	name := 0
	for _, h := range header {
		name = max(name, utf8.RuneCountInString(h))
	}
	var out strings.Builder
	for n, row := range rows {
		if n > 0 {
			out.WriteByte('\n')
		}
		for i, cell := range row {
			if cell == "" {
				continue
			}
			title := ""
			if i < len(header) {
				title = header[i]
			}
			for _, piece := range breakCell(cell, max(leastColumn, columns-name-tableGap)) {
				fmt.Fprintf(&out, "%-*s%*s%s\n", name, title, tableGap, "", piece)
				title = ""
			}
		}
	}
	return out.String()
}

// breakCell returns pieces of at most limit characters. It breaks at the last space that leaves at least half a
// line, which it drops, and otherwise anywhere.
func breakCell(cell string, limit int) (pieces []string) {
	rest := []rune(cell)
	limit = max(limit, 1)
	for len(rest) > limit {
		at, next := limit, limit
		for i := limit; i >= (limit+1)/2; i-- {
			if rest[i] == ' ' {
				at, next = i, i+1
				break
			}
		}
		pieces, rest = append(pieces, string(rest[:at])), rest[next:]
	}
	return append(pieces, string(rest))
}

func withoutTrailing(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
