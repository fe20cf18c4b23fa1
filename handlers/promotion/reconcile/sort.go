package reconcile

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"io"

	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// statement is a record of Kafka or a charge of the Money API. It has a fixed size.
type statement struct {
	target int64
	times  int64  // records of Kafka; executions of a charge
	value  int64  // in minor units; 0 where the type has no amount
	hash   uint64 // of a record's request, or of a charge's value
	place  int64  // of a record: see placeOf
}

const statementBytes = 5 * 8

func appendStatement(to []byte, s statement) []byte {
	for _, v := range []uint64{uint64(s.target), uint64(s.times), uint64(s.value), s.hash, uint64(s.place)} {
		to = binary.LittleEndian.AppendUint64(to, v)
	}
	return to
}

func readStatement(from *bufio.Reader) (statement, error) {
	var b [statementBytes]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return statement{}, err
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return statement{int64(at(0)), int64(at(1)), int64(at(2)), at(3), int64(at(4))}, nil
}

func compareStatements(a, b statement) int {
	return cmp.Or(cmp.Compare(a.target, b.target), cmp.Compare(a.place, b.place), cmp.Compare(a.hash, b.hash))
}

type sorter = reconcile.Sorter[statement]

// newSorter returns a sorter of statements by target. Its owner closes it.
func newSorter() *sorter {
	return &sorter{Compare: compareStatements, Append: appendStatement, Read: readStatement}
}

// take returns all statements about a target if it is the next one; nil otherwise.
func take(from *reconcile.Sorted[statement], target int64) (e *Entry, err error) {
	err = from.Take(func(s statement) bool { return s.target == target }, func(s statement) {
		if e == nil {
			e = &Entry{Times: s.times, Amount: s.value, hash: s.hash, place: s.place}
			return
		}
		e.Times += s.times
		e.mixed = e.mixed || s.hash != e.hash
	})
	return e, err
}
