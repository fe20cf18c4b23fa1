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
)

// journalFormat is the first line of a book's file.
const journalFormat = "millrace-money-book"

// ErrJournalInUse says that another process has the book open. Choose another file or stop it.
var ErrJournalInUse = errors.New("the book is in use by another process")

// header is the first line of the file.
type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	ID      string `json:"id"` // prefix of the book's transaction keys
}

// line is one executed charge in the file.
type line struct {
	Number    uint64 `json:"n"` // makes the transaction key
	Key       string `json:"key"`
	Type      string `json:"type"`
	Promotion int64  `json:"promotionId"`
	Summary   int64  `json:"promotionSummaryId"`
	Target    int64  `json:"targetId"`
	Value     string `json:"-"` // under the column of its type
	BodyHash  string `json:"bodyHash"`
	At        int64  `json:"at"` // Unix milliseconds
}

// journal is the append-only file of a book. append is safe for concurrent use.
type journal struct {
	file       *os.File
	syncAlways bool

	mu      sync.Mutex // guards the buffer
	buffer  []byte
	spare   []byte
	entered uint64 // lines ever put into the buffer

	writing sync.Mutex // held by the one who writes; guards what follows
	written uint64     // lines handed to the kernel
	synced  uint64
	broken  error // after a failed write the file's end is unknown: nothing is appended any more
}

// newID returns a prefix for transaction keys.
func newID() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// openJournal opens or creates the file, hands every line in it to load, and cuts off a torn last line.
func openJournal(path string, syncAlways bool, load func(line) error) (j *journal, id string, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, "", fmt.Errorf("open book: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unlock(f) // it may not be locked
			f.Close()
		}
	}()
	if err := lock(f); err != nil {
		return nil, "", fmt.Errorf("open book %s: %w", path, err)
	}
	h, end, err := readJournal(f, load)
	if err != nil {
		return nil, "", fmt.Errorf("read book %s: %w", path, err)
	}
	if err := f.Truncate(end); err != nil {
		return nil, "", fmt.Errorf("cut off the torn end of book %s: %w", path, err)
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return nil, "", fmt.Errorf("read book %s: %w", path, err)
	}
	j = &journal{file: f, syncAlways: syncAlways}
	if h.ID == "" {
		h = header{Format: journalFormat, Version: 1, ID: newID()}
		b, err := json.Marshal(h)
		if err != nil {
			return nil, "", fmt.Errorf("begin book %s: %w", path, err)
		}
		if err := j.append(append(b, '\n')); err != nil {
			return nil, "", fmt.Errorf("begin book %s: %w", path, err)
		}
		if err := j.sync(); err != nil {
			return nil, "", fmt.Errorf("begin book %s: %w", path, err)
		}
	}
	return j, h.ID, nil
}

// readJournal returns the header (zero in an empty file) and where the last whole line ends.
func readJournal(r io.Reader, load func(line) error) (h header, end int64, err error) {
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return h, end, nil // what has no end of line was never answered
		}
		if err != nil {
			return h, end, err
		}
		if n == 1 {
			if json.Unmarshal(text, &h) != nil || h.Format != journalFormat || h.ID == "" {
				return h, end, errors.New("line 1: this is not a book of the simulated Money API")
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

// append returns when text, whole lines, is with the kernel (or on the disk, with syncAlways).
// Whoever comes first writes for all who came meanwhile.
func (j *journal) append(text []byte) error {
	j.mu.Lock()
	j.buffer = append(j.buffer, text...)
	j.entered++
	mine := j.entered
	j.mu.Unlock()

	j.writing.Lock()
	defer j.writing.Unlock()
	if j.written >= mine {
		return nil
	}
	if j.broken != nil {
		return j.broken
	}
	j.mu.Lock()
	batch, upto := j.buffer, j.entered
	j.buffer = j.spare[:0]
	j.mu.Unlock()
	_, err := j.file.Write(batch)
	if err == nil && j.syncAlways {
		err = j.file.Sync()
	}
	if err != nil {
		j.broken = fmt.Errorf("write book: %w", err)
		return j.broken
	}
	j.spare = batch
	j.written = upto
	if j.syncAlways {
		j.synced = upto
	}
	return nil
}

// sync puts what is written on the disk.
func (j *journal) sync() error {
	j.writing.Lock()
	upto, done := j.written, j.synced
	j.writing.Unlock()
	if upto == done {
		return nil
	}
	// Not under the lock: charges go on meanwhile.
	if err := j.file.Sync(); err != nil {
		return fmt.Errorf("sync book: %w", err)
	}
	j.writing.Lock()
	j.synced = max(j.synced, upto)
	j.writing.Unlock()
	return nil
}

func (j *journal) close() error {
	return errors.Join(j.sync(), unlock(j.file), j.file.Close())
}
