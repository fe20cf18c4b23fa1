// Package linefile reads files that operators give to commands: CSV, or one JSON object per line.
package linefile

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxLine bounds a line of JSON, in bytes.
const maxLine = 1 << 20

// Error says which line of a file can't be read, and what was expected there.
type Error struct {
	Path    string
	Line    int
	Problem string
}

// Error names the file, the line and what was expected.
func (e *Error) Error() string { return fmt.Sprintf("%s, line %d: %s", e.Path, e.Line, e.Problem) }

// File is one that is read. A file that begins with { has one JSON object per line, and any other is CSV with a header.
type File struct {
	Path string
	// Header is what the first line of CSV has, in the error about an empty file.
	Header string
	// Object gets each line of JSON that is not empty, and Row each line of CSV, the header first, with its number from 1; of a
	// record that spans lines, that of the first one. Neither may keep what it gets. Their errors end the reading.
	Object func(line int, text []byte) error
	Row    func(line int, cells []string) error
}

// Wrong returns an *Error.
func (f *File) Wrong(line int, format string, args ...any) error {
	return &Error{f.Path, line, fmt.Sprintf(format, args...)}
}

// Read reads the file from its beginning. A line that is neither JSON nor CSV is an *Error.
func (f *File) Read() (err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	in := bufio.NewReaderSize(file, 64<<10)
	if start, _ := in.Peek(3); bytes.Equal(start, []byte("\xef\xbb\xbf")) { // of programs on Windows
		_, _ = in.Discard(3)
	}
	if first, _ := in.Peek(1); len(first) == 1 && first[0] == '{' {
		return f.readObjects(in)
	}
	return f.readRows(in)
}

func (f *File) readObjects(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	number := 0
	for lines.Scan() {
		number++
		if text := bytes.TrimSpace(lines.Bytes()); len(text) > 0 {
			if err := f.Object(number, text); err != nil {
				return err
			}
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return f.Wrong(number+1, "want one JSON object of at most %d bytes, and the line is longer", maxLine)
	}
	return lines.Err()
}

func (f *File) readRows(in io.Reader) error {
	r := csv.NewReader(in)
	r.ReuseRecord = true
	r.FieldsPerRecord = -1
	for first := true; ; first = false {
		cells, err := r.Read()
		var wrong *csv.ParseError
		switch {
		case errors.Is(err, io.EOF) && first:
			return f.Wrong(1, "want a header with %s, or one JSON object per line, and the file is empty", f.Header)
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &wrong):
			return f.Wrong(wrong.Line, "want a line of CSV, where a cell that has a quote or a comma is in double quotes: %s", wrong.Err)
		case err != nil:
			return err
		}
		number, _ := r.FieldPos(0)
		if err := f.Row(number, cells); err != nil {
			return err
		}
	}
}
