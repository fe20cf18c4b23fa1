package once

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
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// maxRequestBytes bounds a line of JSON. The ledger accepts less, and says so for each.
const maxRequestBytes = 1 << 20

// requestFile has a record of a kind's topic in each line: as JSON, or in the columns of a CSV file with a header.
type requestFile struct {
	path    string
	numbers []string // columns of a CSV file that are numbers in the record
}

func (f requestFile) wrong(line int, format string, args ...any) error {
	return &reconcile.LineError{Path: f.path, Line: line, Problem: fmt.Sprintf(format, args...)}
}

// each calls do for every record, in the order of the file, with its line from 1. A line that is neither JSON nor CSV
// ends it with a *reconcile.LineError, and so do the errors of do.
func (f requestFile) each(do func(line int, payload []byte) error) (err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	in := bufio.NewReaderSize(file, 64<<10)
	if start, _ := in.Peek(3); bytes.Equal(start, []byte("\xef\xbb\xbf")) { // of programs on Windows
		_, _ = in.Discard(3)
	}
	if first, _ := in.Peek(1); len(first) == 1 && first[0] == '{' {
		return f.eachObject(in, do)
	}
	return f.eachRow(in, do)
}

func (f requestFile) eachObject(in io.Reader, do func(int, []byte) error) error {
	if len(f.numbers) > 0 {
		return f.wrong(1, "--number is for the columns of CSV, and this file has JSON")
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxRequestBytes)
	number := 0
	for lines.Scan() {
		number++
		text := bytes.TrimSpace(lines.Bytes())
		switch {
		case len(text) == 0:
			continue
		case text[0] != '{' || !json.Valid(text):
			return f.wrong(number, "want one JSON object, as a record of the topic")
		}
		if err := do(number, bytes.Clone(text)); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return f.wrong(number+1, "want one JSON object of at most %d bytes, and the line is longer", maxRequestBytes)
	}
	return lines.Err()
}

func (f requestFile) eachRow(in io.Reader, do func(int, []byte) error) error {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	r.FieldsPerRecord = -1
	var columns []string
	for {
		cells, err := r.Read()
		var wrong *csv.ParseError
		switch {
		case errors.Is(err, io.EOF) && columns == nil:
			return f.wrong(1, "want a header with the names of the record's fields, or one JSON object per line, and the file is empty")
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &wrong):
			return f.wrong(wrong.Line, "want a line of CSV, where a cell that has a quote or a comma is in double quotes: %s", wrong.Err)
		case err != nil:
			return err
		}
		number, _ := r.FieldPos(0)
		if columns == nil {
			if columns, err = f.header(number, cells); err != nil {
				return err
			}
			continue
		}
		payload, err := f.row(number, columns, cells)
		if err == nil {
			err = do(number, payload)
		}
		if err != nil {
			return err
		}
	}
}

func (f requestFile) header(number int, cells []string) ([]string, error) {
	columns := make([]string, len(cells))
	for i, cell := range cells {
		name := strings.TrimSpace(cell)
		switch {
		case name == "" || !utf8.ValidString(name):
			return nil, f.wrong(number, "want the name of a field of the record in each column of the header, in UTF-8, got %q in column %d", cell, i+1)
		case slices.Contains(columns[:i], name):
			return nil, f.wrong(number, "want each column once, got %s twice", name)
		}
		columns[i] = strings.Clone(name)
	}
	for _, name := range f.numbers {
		if !slices.Contains(columns, name) {
			return nil, f.wrong(number, "--number %s is no column, the header has %s", name, strings.Join(columns, ", "))
		}
	}
	return columns, nil
}

// row makes the record of a line, with its fields in the order of the columns. An empty cell of a number is no field.
func (f requestFile) row(number int, columns, cells []string) ([]byte, error) {
	if len(cells) != len(columns) {
		return nil, f.wrong(number, "want %d cells, as in the header, got %d", len(columns), len(cells))
	}
	payload := []byte{'{'}
	for i, name := range columns {
		var value any = cells[i]
		if slices.Contains(f.numbers, name) {
			cell := strings.TrimSpace(cells[i])
			if cell == "" {
				continue
			}
			if value = json.Number(cell); !json.Valid([]byte(cell)) || strings.ContainsAny(cell[:1], `"{[tfn`) {
				return nil, f.wrong(number, "want a number in column %s, got %q", name, cell)
			}
		} else if !utf8.ValidString(cells[i]) {
			return nil, f.wrong(number, "want UTF-8 in column %s, got %q", name, cells[i])
		}
		if len(payload) > 1 {
			payload = append(payload, ',')
		}
		field, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		payload = append(append(append(payload, field...), ':'), text...)
	}
	return append(payload, '}'), nil
}
