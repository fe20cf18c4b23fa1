package simulator

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/gofrs/flock"
)

const journalFormat = "millrace-money-book"

// ErrJournalInUse means that another process has the journal open. Choose another file or stop it.
var ErrJournalInUse = errors.New("the journal is in use by another process")

type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	ID      string `json:"id"` // prefix of the transaction keys
}

// line is one charge in the file.
type line struct {
	Number uint64 `json:"n"` // makes the transaction key
	Key    string `json:"key"`
	order
	At int64 `json:"at"` // Unix milliseconds
}

// journalFile is the append-only file of a journal. append is safe for concurrent use.
type journalFile struct {
	file       *os.File
	lock       *flock.Flock // of a file next to it
	syncAlways bool

	mu      sync.Mutex // guards the buffer
	buffer  []byte
	entered uint64 // lines ever put into the buffer

	writing sync.Mutex // held during a write; guards the fields below
	written uint64     // lines written to the file
	synced  uint64
	broken  error // a failed write: the file's end is unknown, and nothing more is appended
}

func newID() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// openFile opens or creates the file, loads its lines, and cuts off a torn last line.
func openFile(path string, syncAlways bool, load func(line) error) (f *journalFile, id string, err error) {
	f = &journalFile{lock: flock.New(path + ".lock"), syncAlways: syncAlways}
	locked, err := f.lock.TryLock()
	if err == nil && !locked {
		err = ErrJournalInUse
	}
	if err != nil {
		return nil, "", fmt.Errorf("open journal %s: %w", path, err)
	}
	if f.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		id, err = f.load(load)
	}
	if err != nil {
		f.file.Close()
		return nil, "", errors.Join(fmt.Errorf("open journal %s: %w", path, err), f.lock.Unlock())
	}
	return f, id, nil
}

// load reads the file, or starts it, and returns its id.
func (f *journalFile) load(load func(line) error) (id string, err error) {
	h, end, err := readLines(f.file, load)
	if err != nil {
		return "", err
	}
	if err := f.file.Truncate(end); err != nil {
		return "", fmt.Errorf("cut off the torn end: %w", err)
	}
	if _, err := f.file.Seek(end, io.SeekStart); err != nil || h.ID != "" {
		return h.ID, err
	}
	h = header{Format: journalFormat, Version: 1, ID: newID()}
	b, err := json.Marshal(h)
	if err != nil {
		return "", err
	}
	if err := f.append(append(b, '\n')); err != nil {
		return "", err
	}
	return h.ID, f.sync()
}

// readLines returns the header (zero in an empty file) and the end of the last complete line.
func readLines(r io.Reader, load func(line) error) (h header, end int64, err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return h, end, nil // a line without its end was never answered
		}
		if err != nil {
			return h, end, err
		}
		if n == 1 {
			if json.Unmarshal(text, &h) != nil || h.Format != journalFormat || h.ID == "" {
				return h, end, errors.New("line 1: this is not a journal of the simulated Money API")
			}
			if h.Version != 1 {
				return h, end, fmt.Errorf("line 1: version %d is not known", h.Version)
			}
		} else {
			var l line
			if err := json.Unmarshal(text, &l); err != nil {
				return h, end, fmt.Errorf("line %d: %w", n, err)
			}
			if err := load(l); err != nil {
				return h, end, fmt.Errorf("line %d: %w", n, err)
			}
		}
		end += int64(len(text))
	}
}

// append returns when text, complete lines, is written, and with syncAlways when it is on the disk.
// Concurrent calls share one write.
func (f *journalFile) append(text []byte) error {
	f.mu.Lock()
	f.buffer = append(f.buffer, text...)
	f.entered++
	mine := f.entered
	f.mu.Unlock()

	f.writing.Lock()
	defer f.writing.Unlock()
	if f.written >= mine {
		return nil
	}
	if f.broken != nil {
		return f.broken
	}
	f.mu.Lock()
	batch, upto := f.buffer, f.entered
	f.buffer = nil
	f.mu.Unlock()
	_, err := f.file.Write(batch)
	if err == nil && f.syncAlways {
		err = f.file.Sync()
	}
	if err != nil {
		f.broken = fmt.Errorf("write journal: %w", err)
		return f.broken
	}
	f.written = upto
	if f.syncAlways {
		f.synced = upto
	}
	return nil
}

func (f *journalFile) sync() error {
	f.writing.Lock()
	upto, done := f.written, f.synced
	f.writing.Unlock()
	if upto == done {
		return nil
	}
	// Without the lock, so that charges continue.
	if err := f.file.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	f.writing.Lock()
	f.synced = max(f.synced, upto)
	f.writing.Unlock()
	return nil
}

func (f *journalFile) close() error {
	return errors.Join(f.sync(), f.file.Close(), f.lock.Unlock())
}
