package setting

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"
)

// A file that was changed less than this before it was read is read again, because a second change may
// have left its time and its size as they were.
const fileSettled = 2 * time.Second

// followed is a value that is made of files, such as a password or a certificate with its key. The files
// may be changed or replaced while the service runs. It is safe for concurrent use.
type followed[T comparable] struct {
	paths []string
	limit int64 // bytes of one file
	// parse makes the value of one content per path, and refuses by its error what must not replace the
	// last value, which is zero at first.
	parse func(contents [][]byte, last T) (T, error)

	mu       sync.Mutex
	value    T
	contents [][]byte      // that value is made of; nil: not known
	seen     []fs.FileInfo // of the files that contents are from; nil: read them again
}

// look returns the current value, and whether it is another one than before. With an error, which says
// why the files can't be used, it returns the last good value. It costs a look at the times of the files,
// unless they have changed.
func (f *followed[T]) look() (value T, changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unchanged() {
		return f.value, false, nil
	}
	f.seen = nil
	contents, seen, settled := make([][]byte, 0, len(f.paths)), make([]fs.FileInfo, 0, len(f.paths)), true
	for _, path := range f.paths {
		content, info, err := readFile(path, f.limit)
		if err != nil {
			return f.value, false, err
		}
		contents, seen = append(contents, content), append(seen, info)
		settled = settled && time.Since(info.ModTime()) >= fileSettled
	}
	if f.contents == nil || !slices.EqualFunc(contents, f.contents, bytes.Equal) {
		now, err := f.parse(contents, f.value)
		if err != nil {
			return f.value, false, err
		}
		f.value, f.contents, changed = now, contents, now != f.value
	}
	if settled {
		f.seen = seen
	}
	return f.value, changed, nil
}

// unchanged reports whether the paths lead to the same files with the same content as before. A replaced
// file, also behind a symbolic link, is another one.
func (f *followed[T]) unchanged() bool {
	if f.seen == nil {
		return false
	}
	for i, path := range f.paths {
		now, err := os.Stat(path)
		before := f.seen[i]
		if err != nil || !os.SameFile(now, before) || !now.ModTime().Equal(before.ModTime()) || now.Size() != before.Size() {
			return false
		}
	}
	return true
}

// fileError says what is wrong with the content of a file.
type fileError struct {
	path string
	err  error
}

func (e *fileError) Error() string { return "file " + e.path + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// pathOf returns the file that an error of look is about, if it is about one.
func pathOf(err error) string {
	if file, ok := errors.AsType[*fileError](err); ok {
		return file.path
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return file.Path
	}
	return ""
}

// readFile returns the content of a file that must not be larger than limit, and what was read.
func readFile(path string, limit int64) (content []byte, info fs.FileInfo, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil { // before the content: a later change is noticed
		return nil, nil, err
	}
	content, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = &fileError{path, fmt.Errorf("it must have at most %d bytes", limit)}
	}
	return content, info, err
}
