package reconcile

import (
	"encoding/csv"
	"errors"
	"io/fs"
	"os"
)

// Table is a CSV file with one line per thing that was compared.
type Table struct {
	Path    string // empty: nothing is written
	Columns []string

	file *os.File
	out  *csv.Writer
}

// Check reports why the file can't be written, before anything is compared. The file itself is written from the
// first Begin or Write on, so that an older one stays until then.
func (t *Table) Check() error {
	if t.Path == "" {
		return nil
	}
	f, err := os.OpenFile(t.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if f, err = os.OpenFile(t.Path, os.O_WRONLY, 0); err == nil {
			err = f.Close()
		}
		return err
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(t.Path))
}

// Begin creates the file with its header, if there is none yet.
func (t *Table) Begin() error {
	if t.Path == "" || t.file != nil {
		return nil
	}
	var err error
	if t.file, err = os.Create(t.Path); err != nil {
		return err
	}
	t.out = csv.NewWriter(t.file)
	return t.out.Write(t.Columns)
}

// Write writes a line.
func (t *Table) Write(line []string) error {
	if t.Path == "" {
		return nil
	}
	if err := t.Begin(); err != nil {
		return err
	}
	return t.out.Write(line)
}

// Close ends the file. It is called once, also after an error.
func (t *Table) Close() error {
	if t.file == nil {
		return nil
	}
	t.out.Flush()
	return errors.Join(t.out.Error(), t.file.Close())
}
