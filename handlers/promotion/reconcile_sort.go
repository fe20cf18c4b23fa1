package promotion

import (
	"bufio"
	"cmp"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// statement is what a book that has no order of its own says about a target: a record that Kafka offers, or a charge of
// the Money API. It has a fixed size, so that a campaign of any size is sorted in little memory.
type statement struct {
	target int64
	times  int64  // records of Kafka; executions of a charge
	value  int64  // minor units; 0 where the type has no amount
	what   uint64 // what is to be paid, amount or voucher: see whatOf
	place  int64  // of Kafka: partition and offset, see placeOf
}

const lineBytes = 5 * 8

func (l statement) append(to []byte) []byte {
	for _, v := range []uint64{uint64(l.target), uint64(l.times), uint64(l.value), l.what, uint64(l.place)} {
		to = binary.LittleEndian.AppendUint64(to, v)
	}
	return to
}

func readLine(from []byte) statement {
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(from[8*i:]) }
	return statement{int64(at(0)), int64(at(1)), int64(at(2)), at(3), int64(at(4))}
}

func compareLines(a, b statement) int {
	return cmp.Or(cmp.Compare(a.target, b.target), cmp.Compare(a.place, b.place), cmp.Compare(a.what, b.what))
}

const (
	sortedLines = 1 << 15 // lines that are sorted in memory at once
	runBuffer   = 16 << 10
)

// sorter puts lines in order of target: sorted runs in a temporary file, merged when they are read. The zero value is
// ready; its owner closes it.
type sorter struct {
	most  int // lines in memory at once; 0: sortedLines
	lines []statement
	file  *os.File
	ends  []int64 // where each run in the file ends
}

func (s *sorter) add(l statement) error {
	if len(s.lines) == cmp.Or(s.most, sortedLines) {
		if err := s.spill(); err != nil {
			return fmt.Errorf("sort: %w", err)
		}
	}
	s.lines = append(s.lines, l)
	return nil
}

// spill writes the lines in memory as a run.
func (s *sorter) spill() error {
	if s.file == nil {
		f, err := os.CreateTemp("", "millrace-reconcile-")
		if err != nil {
			return err
		}
		s.file = f
	}
	slices.SortFunc(s.lines, compareLines)
	w := bufio.NewWriterSize(s.file, 64<<10)
	var b [lineBytes]byte
	for _, l := range s.lines {
		if _, err := w.Write(l.append(b[:0])); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	end := int64(len(s.lines)) * lineBytes
	if n := len(s.ends); n > 0 {
		end += s.ends[n-1]
	}
	s.ends, s.lines = append(s.ends, end), s.lines[:0]
	return nil
}

// close removes what was written.
func (s *sorter) close() error {
	if s.file == nil {
		return nil
	}
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}

// run is a sorted run that is being read; head is its next line.
type run struct {
	head  statement
	lines []statement // a run in memory
	file  *bufio.Reader
}

// next moves to the next line, or answers io.EOF.
func (r *run) next() error {
	if r.file == nil {
		if len(r.lines) == 0 {
			return io.EOF
		}
		r.head, r.lines = r.lines[0], r.lines[1:]
		return nil
	}
	var b [lineBytes]byte
	if _, err := io.ReadFull(r.file, b[:]); err != nil {
		return err
	}
	r.head = readLine(b[:])
	return nil
}

// runs is a heap by head.
type runs []*run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, j int) bool { return compareLines(r[i].head, r[j].head) < 0 }
func (r runs) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(*run)) }
func (r *runs) Pop() any {
	last := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	return last
}

// sorted returns what was added, in order. Nothing may be added afterwards.
func (s *sorter) sorted() (*sortedBook, error) {
	slices.SortFunc(s.lines, compareLines)
	all := []*run{{lines: s.lines}}
	start := int64(0)
	for _, end := range s.ends {
		all = append(all, &run{file: bufio.NewReaderSize(io.NewSectionReader(s.file, start, end-start), runBuffer)})
		start = end
	}
	b := &sortedBook{}
	for _, r := range all {
		switch err := r.next(); {
		case err == nil:
			b.runs = append(b.runs, r)
		case !errors.Is(err, io.EOF):
			return nil, fmt.Errorf("sort: %w", err)
		}
	}
	heap.Init(&b.runs)
	return b, nil
}

// sortedBook is a book in order of target.
type sortedBook struct{ runs runs }

// entry is everything a book says about one target.
type entry struct {
	statement      // of the first line, with the times of all
	mixed     bool // the lines do not all ask for the same
}

// peek returns the next target; ok is false at the end.
func (b *sortedBook) peek() (target int64, ok bool) {
	if len(b.runs) == 0 {
		return 0, false
	}
	return b.runs[0].head.target, true
}

// take returns what the book says of a target, if that is the next one; nil otherwise.
func (b *sortedBook) take(target int64) (*entry, error) {
	var e *entry
	for {
		if next, ok := b.peek(); !ok || next != target {
			return e, nil
		}
		first := b.runs[0]
		if e == nil {
			e = &entry{statement: first.head}
		} else {
			e.times += first.head.times
			e.mixed = e.mixed || first.head.what != e.what
		}
		switch err := first.next(); {
		case err == nil:
			heap.Fix(&b.runs, 0)
		case errors.Is(err, io.EOF):
			heap.Pop(&b.runs)
		default:
			return nil, fmt.Errorf("sort: %w", err)
		}
	}
}
