package reconcile

import (
	"bufio"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
)

const (
	maxInMemory = 1 << 15  // items that are sorted in memory at once
	runBuffer   = 16 << 10 // bytes
)

// Sorter sorts more items than fit into memory: it writes sorted runs to a temporary file and merges them while
// they are read. A temporary SQLite table and a join took six times as long for a million items. Its owner
// closes it. It is not safe for concurrent use.
type Sorter[T any] struct {
	// Compare is the order, and required, as are Append and Read.
	Compare func(a, b T) int
	// Append encodes an item, and Read decodes the next one. Read returns io.EOF at the end.
	Append func(to []byte, one T) []byte
	Read   func(from *bufio.Reader) (T, error)
	// Max is the largest number of items in memory. 0: 32,768.
	Max int

	items []T
	file  *os.File
	ends  []int64 // offset in the file after each run
}

// Add adds an item. It writes a file into the folder for temporary files when there are more than Max.
func (s *Sorter[T]) Add(one T) error {
	if len(s.items) == cmp.Or(s.Max, maxInMemory) {
		if err := s.spill(); err != nil {
			return fmt.Errorf("sort: %w", err)
		}
	}
	s.items = append(s.items, one)
	return nil
}

// sort sorts the items in memory. The sort of slices would have a copy of itself for each T.
func (s *Sorter[T]) sort() { sort.Sort(order[T]{s.items, s.Compare}) }

// order implements sort.Interface.
type order[T any] struct {
	items   []T
	compare func(a, b T) int
}

func (o order[T]) Len() int           { return len(o.items) }
func (o order[T]) Less(i, j int) bool { return o.compare(o.items[i], o.items[j]) < 0 }
func (o order[T]) Swap(i, j int)      { o.items[i], o.items[j] = o.items[j], o.items[i] }

// spill writes the items in memory as a run.
func (s *Sorter[T]) spill() error {
	if s.file == nil {
		f, err := os.CreateTemp("", "millrace-reconcile-")
		if err != nil {
			return err
		}
		s.file = f
	}
	s.sort()
	w := bufio.NewWriterSize(s.file, 64<<10)
	var end int64
	if n := len(s.ends); n > 0 {
		end = s.ends[n-1]
	}
	var b []byte
	for _, one := range s.items {
		b = s.Append(b[:0], one)
		if _, err := w.Write(b); err != nil {
			return err
		}
		end += int64(len(b))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	clear(s.items) // so that their texts are free
	s.ends, s.items = append(s.ends, end), s.items[:0]
	return nil
}

// Close removes the temporary file.
func (s *Sorter[T]) Close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}

// Sorted returns all items in order. Nothing may be added afterwards, and the Sorter may not be closed before all
// is read.
func (s *Sorter[T]) Sorted() (*Sorted[T], error) {
	s.sort()
	all := []*run[T]{{items: s.items}}
	start := int64(0)
	for _, end := range s.ends {
		all = append(all, &run[T]{file: bufio.NewReaderSize(io.NewSectionReader(s.file, start, end-start), runBuffer)})
		start = end
	}
	merged := &Sorted[T]{s.Read, runs[T]{compare: s.Compare}}
	for _, r := range all {
		switch err := r.next(s.Read); {
		case err == nil:
			merged.runs.all = append(merged.runs.all, r)
		case !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("sort: %w", err)
		}
	}
	heap.Init(&merged.runs)
	return merged, nil
}

// run is a sorted run that is being read; head is its next item.
type run[T any] struct {
	head  T
	items []T // of a run in memory
	file  *bufio.Reader
}

// next moves to the next item, or returns io.EOF.
func (r *run[T]) next(read func(*bufio.Reader) (T, error)) (err error) {
	if r.file != nil {
		r.head, err = read(r.file)
		return err
	}
	if len(r.items) == 0 {
		return io.EOF
	}
	r.head, r.items = r.items[0], r.items[1:]
	return nil
}

type runs[T any] struct {
	compare func(a, b T) int
	all     []*run[T]
}

func (r *runs[T]) Len() int           { return len(r.all) }
func (r *runs[T]) Less(i, j int) bool { return r.compare(r.all[i].head, r.all[j].head) < 0 }
func (r *runs[T]) Swap(i, j int)      { r.all[i], r.all[j] = r.all[j], r.all[i] }
func (r *runs[T]) Push(x any)         { r.all = append(r.all, x.(*run[T])) }
func (r *runs[T]) Pop() any {
	last := r.all[len(r.all)-1]
	r.all = r.all[:len(r.all)-1]
	return last
}

// Sorted are the items of a Sorter in order.
type Sorted[T any] struct {
	read func(*bufio.Reader) (T, error)
	runs runs[T]
}

// Peek returns the next item; ok is false at the end.
func (s *Sorted[T]) Peek() (one T, ok bool) {
	if len(s.runs.all) == 0 {
		return one, false
	}
	return s.runs.all[0].head, true
}

// Take calls each for the next items as long as they match.
func (s *Sorted[T]) Take(match func(T) bool, each func(T)) error {
	for {
		one, ok := s.Peek()
		if !ok || !match(one) {
			return nil
		}
		each(one)
		switch err := s.runs.all[0].next(s.read); {
		case err == nil:
			heap.Fix(&s.runs, 0)
		case errors.Is(err, io.EOF):
			heap.Pop(&s.runs)
		default:
			return fmt.Errorf("sort: %w", err)
		}
	}
}

// appendText appends a text with its length before it.
func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}

// readText reads what appendText has written.
func readText(from *bufio.Reader) (string, error) {
	n, err := binary.ReadUvarint(from)
	if err != nil {
		return "", err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(from, b)
	return string(b), err
}
