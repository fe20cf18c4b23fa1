package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// target is one line of a campaign file.
type target struct {
	of promotiontype.Type
	id int64
	written
}

// written is what a line says about its target.
type written struct {
	value string // the amount in minor units, or the voucher
	line  int    // in the campaign file; 0: generated
	// spelled is the id as the file has it; empty: as its number is written, unlike 00123.
	spelled string
}

// generated returns n targets per type, ids 1 to n. The seed determines their values.
func generated(n int, seed uint64, types ...promotiontype.Type) iter.Seq2[target, error] {
	return func(yield func(target, error) bool) {
		random := rand.New(rand.NewPCG(seed, 0))
		for id := int64(1); id <= int64(n); id++ {
			for _, t := range types {
				if !yield(target{of: t, id: id, written: written{value: t.Sample(1 + random.IntN(10_000))}}, nil) {
					return
				}
			}
		}
	}
}

// targetSource is the targets of a campaign, readable more than once.
type targetSource struct {
	targets  iter.Seq2[target, error]
	counts   map[string]int64 // by type
	distinct int64            // different targets of all types
	notes    []string         // about targets that the file has twice
}

func (s targetSource) total() (n int64) {
	for _, count := range s.counts {
		n += count
	}
	return n
}

func generatedSource(n int, seed uint64, types ...promotiontype.Type) targetSource {
	s := targetSource{targets: generated(n, seed, types...), counts: map[string]int64{}, distinct: int64(n) * int64(len(types))}
	for _, t := range types {
		s.counts[t.Name] = int64(n)
	}
	return s
}

// maxNotes bounds the notes about a campaign file.
const maxNotes = 10

// fileSource is the targets of a campaign file. It reads the complete file to check it. It refuses a
// target with two values, because only the first record of a target is paid.
func fileSource(path string) (targetSource, error) { return checkedSource(path, fromCSV(path)) }

// checkedSource checks the targets of the file at path, which it reads twice if one is there twice.
func checkedSource(path string, targets iter.Seq2[target, error]) (targetSource, error) {
	s := targetSource{targets: targets, counts: map[string]int64{}}
	ids, err := sortedIDs(s.targets)
	if err != nil {
		return targetSource{}, err
	}
	repeated := map[targetKey]*written{}
	for of, all := range ids {
		s.counts[of] = int64(len(all))
		for i, id := range all {
			if i == 0 || id != all[i-1] {
				s.distinct++
			} else {
				repeated[targetKey{of, id}] = nil
			}
		}
	}
	if s.distinct == 0 {
		return targetSource{}, fmt.Errorf("%s has no targets", path)
	}
	if len(repeated) > 0 {
		s.notes, err = compareRepeated(path, s.targets, repeated)
	}
	return s, err
}

// sortedIDs returns the ids of the targets by type, in order and with repetitions. A file has
// millions of lines, so it keeps nothing else of them.
func sortedIDs(targets iter.Seq2[target, error]) (map[string][]int64, error) {
	ids := map[string][]int64{}
	for t, err := range targets {
		if err != nil {
			return nil, err
		}
		ids[t.of.Name] = append(ids[t.of.Name], t.id)
	}
	for _, all := range ids {
		slices.Sort(all)
	}
	return ids, nil
}

// targetKey identifies a target of a campaign.
type targetKey struct {
	of string // name of the type
	id int64
}

// compareRepeated reads the file again and compares the lines of the targets that it has more than
// once. It fills in the first line of each, and returns notes about different spellings.
func compareRepeated(path string, targets iter.Seq2[target, error], repeated map[targetKey]*written) (notes []string, err error) {
	for t, err := range targets {
		if err != nil {
			return nil, err
		}
		key := targetKey{t.of.Name, t.id}
		first, more := repeated[key]
		if !more {
			continue
		}
		if first == nil {
			line := t.written
			repeated[key] = &line // the address of t's own field would keep all of t
			continue
		}
		before := target{of: t.of, id: t.id, written: *first}
		if !before.sameValue(t) {
			return nil, fmt.Errorf("%s: lines %d and %d: %s of %s is there twice, with %s %q and %q: a target is paid once, so delete one of the lines",
				path, before.line, t.line, t.spelling(), t.of.Name, t.of.Column, before.value, t.value)
		}
		if before.spelling() != t.spelling() && len(notes) < maxNotes {
			notes = append(notes, fmt.Sprintf("%s: lines %d and %d: %s and %s are the same target of %s, and it is paid once",
				path, before.line, t.line, before.spelling(), t.spelling(), t.of.Name))
		}
	}
	return notes, nil
}

func (t target) spelling() string { return cmp.Or(t.spelled, strconv.FormatInt(t.id, 10)) }

// sameValue reports whether the records of two lines of a target are the same.
func (t target) sameValue(u target) bool {
	if t.value == u.value {
		return true
	}
	a, errA := t.of.Encode(1, 1, t.id, t.value)
	b, errB := u.of.Encode(1, 1, u.id, u.value)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// spoolStdin copies in to a temporary file, because a campaign file is read twice. The caller calls
// remove.
func spoolStdin(in io.Reader) (path string, remove func(), err error) {
	f, err := os.CreateTemp("", "millrace-stdin-*.csv")
	if err != nil {
		return "", nil, err
	}
	_, err = io.Copy(f, in)
	err = errors.Join(err, f.Close())
	remove = func() { _ = os.Remove(f.Name()) }
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("standard input: %w", err)
	}
	return f.Name(), remove, nil
}

// csvColumns returns the header of a campaign file that has only these value columns. Each line
// fills only the value column of its type.
func csvColumns(values ...string) []string {
	unused := func(column string) bool { return !slices.Contains(values, column) }
	return append([]string{"promotionType", "targetId"}, slices.DeleteFunc(promotiontype.Columns(), unused)...)
}

func csvHeader() string { return strings.Join(csvColumns(promotiontype.Columns()...), ",") }

func csvUsage(what string) string {
	return what + " the targets of this `file`, or of standard input (-); columns " + csvHeader()
}

// fromCSV returns the targets of a campaign file. It ends with the first error, which names file
// and line.
func fromCSV(path string) iter.Seq2[target, error] {
	return func(yield func(target, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(target{}, fmt.Errorf("campaign file: %w", err))
			return
		}
		defer func() { _ = f.Close() }()
		for t, err := range readCSV(f) {
			if err != nil {
				err = fmt.Errorf("%s: line %w", path, err)
			}
			if !yield(t, err) || err != nil {
				return
			}
		}
	}
}

// byteOrderMark is what Excel and other programs write before UTF-8.
const byteOrderMark = "\xef\xbb\xbf"

func readCSV(r io.Reader) iter.Seq2[target, error] {
	return func(yield func(target, error) bool) {
		buffered := bufio.NewReader(r)
		if start, _ := buffered.Peek(len(byteOrderMark)); string(start) == byteOrderMark {
			_, _ = buffered.Discard(len(byteOrderMark))
		}
		if start, _ := buffered.Peek(64); utf16Habit(start) {
			yield(target{}, errors.New("1: the file is in UTF-16, as Excel's Unicode Text is: save it as CSV UTF-8"))
			return
		}
		var columns []string
		in := csv.NewReader(buffered)
		in.ReuseRecord = true
		for first := true; ; first = false {
			fields, err := in.Read()
			var wrong *csv.ParseError
			switch {
			case errors.Is(err, io.EOF):
				if first {
					yield(target{}, errors.New("1: the file is empty"))
				}
				return
			case errors.Is(err, csv.ErrFieldCount) && errors.As(err, &wrong):
				yield(target{}, fmt.Errorf("%d: %w: the columns are %s%s", wrong.Line, wrong.Err, strings.Join(columns, ","), withHabit(lineHabit(fields))))
				return
			case errors.As(err, &wrong):
				yield(target{}, fmt.Errorf("%d: %w", wrong.Line, wrong.Err))
				return
			case err != nil:
				yield(target{}, err)
				return
			case first:
				columns = csvColumns(fields...)
				if !slices.Equal(fields, columns) {
					yield(target{}, fmt.Errorf("1: the header must be %s, got %s%s", csvHeader(), strings.Join(fields, ","), withHabit(headerHabit(fields))))
					return
				}
				continue
			}
			line, _ := in.FieldPos(0)
			t, err := parseTarget(columns, fields)
			if err != nil {
				err = fmt.Errorf("%d: %w%s", line, err, withHabit(lineHabit(fields)))
			}
			if t.line = line; err == nil && fields[1] != strconv.FormatInt(t.id, 10) {
				t.spelled = strings.Clone(fields[1])
			}
			if !yield(t, err) || err != nil {
				return
			}
		}
	}
}

func parseTarget(columns, fields []string) (target, error) {
	of, known := promotiontype.ByName(fields[0])
	if !known {
		return target{}, fmt.Errorf("promotionType: must be one of %s, got %q", strings.Join(promotiontype.Names(), ", "), fields[0])
	}
	id, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || id <= 0 {
		return target{}, fmt.Errorf("targetId: must be a whole number > 0, got %q", fields[1])
	}
	t := target{of: of, id: id}
	for i := 2; i < len(columns); i++ {
		switch {
		case columns[i] == of.Column:
			t.value = strings.Clone(fields[i])
		case fields[i] != "":
			return target{}, fmt.Errorf("%s: must be empty for %s, got %q", columns[i], of.Name, fields[i])
		}
	}
	if _, err := of.Encode(1, 1, id, t.value); err != nil {
		return target{}, err
	}
	return t, nil
}
