package once

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/internal/linefile"
)

// requestFile has a record of a kind's topic in each line: as JSON, or in the columns of a CSV file with a header.
type requestFile struct {
	path    string
	numbers []string // columns of a CSV file that are numbers in the record
}

// each calls do for every record, in the order of the file, with its line from 1. The error is a *linefile.Error for what is
// neither JSON nor CSV, or that of do.
func (f requestFile) each(do func(line int, payload []byte) error) error {
	in := &requestReader{requestFile: f, do: do}
	in.File = linefile.File{Path: f.path, Header: "the names of the record's fields", Object: in.object, Row: in.row}
	return in.Read()
}

// requestReader is one reading of a requestFile.
type requestReader struct {
	linefile.File
	requestFile
	do      func(line int, payload []byte) error
	columns []string // nil before the header
}

func (r *requestReader) object(number int, text []byte) error {
	switch {
	case len(r.numbers) > 0:
		return r.Wrong(number, "--number is for the columns of CSV, and this file has JSON")
	case text[0] != '{' || !json.Valid(text):
		return r.Wrong(number, "want one JSON object, as a record of the topic")
	}
	return r.do(number, bytes.Clone(text))
}

func (r *requestReader) row(number int, cells []string) (err error) {
	if r.columns == nil {
		r.columns, err = r.header(number, cells)
		return err
	}
	payload, err := r.record(number, cells)
	if err != nil {
		return err
	}
	return r.do(number, payload)
}

func (r *requestReader) header(number int, cells []string) ([]string, error) {
	columns := make([]string, len(cells))
	for i, cell := range cells {
		name := strings.TrimSpace(cell)
		switch {
		case name == "" || !utf8.ValidString(name):
			return nil, r.Wrong(number, "want the name of a field of the record in each column of the header, in UTF-8, got %q in column %d", cell, i+1)
		case slices.Contains(columns[:i], name):
			return nil, r.Wrong(number, "want each column once, got %s twice", name)
		}
		columns[i] = strings.Clone(name)
	}
	for _, name := range r.numbers {
		if !slices.Contains(columns, name) {
			return nil, r.Wrong(number, "--number %s is no column, the header has %s", name, strings.Join(columns, ", "))
		}
	}
	return columns, nil
}

// record makes the record of a line, with its fields in the order of the columns. An empty cell of a number is no field.
func (r *requestReader) record(number int, cells []string) ([]byte, error) {
	if len(cells) != len(r.columns) {
		return nil, r.Wrong(number, "want %d cells, as in the header, got %d", len(r.columns), len(cells))
	}
	payload := []byte{'{'}
	for i, name := range r.columns {
		var value any = cells[i]
		if slices.Contains(r.numbers, name) {
			cell := strings.TrimSpace(cells[i])
			if cell == "" {
				continue
			}
			value = json.Number(cell)
		} else if !utf8.ValidString(cells[i]) {
			return nil, r.Wrong(number, "want UTF-8 in column %s, got %q", name, cells[i])
		}
		if len(payload) > 1 {
			payload = append(payload, ',')
		}
		field, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(value) // which checks a number
		if err != nil {
			return nil, r.Wrong(number, "want a number in column %s, got %q", name, cells[i])
		}
		payload = append(append(append(payload, field...), ':'), text...)
	}
	return append(payload, '}'), nil
}
