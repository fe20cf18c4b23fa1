package promotion

import (
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
)

// target is one line of a campaign that is to be published.
type target struct {
	kind  string // promotion type
	id    int64
	value string // amount in minor units, or the voucher
}

// generated returns n targets of every given type, ids 1 to n, amounts drawn from the seed.
func generated(n int, seed uint64, types ...string) iter.Seq2[target, error] {
	return func(yield func(target, error) bool) {
		amounts := rand.New(rand.NewPCG(seed, 0))
		for id := int64(1); id <= int64(n); id++ {
			for _, kind := range types {
				t := target{kind: kind, id: id, value: strconv.Itoa(1 + amounts.IntN(10_000))}
				if kind == voucherStrategy().kind {
					t.value = "V-" + t.value
				}
				if !yield(t, nil) {
					return
				}
			}
		}
	}
}

// csvColumns is the header of a campaign file: a POINT line has an amount in minor units, a VOUCHER line a voucherId.
var csvColumns = []string{"promotionType", "targetId", "amount", "voucherId"}

// fromCSV returns the targets of a campaign file, read as they are asked for. It ends with the first
// error, which names file and line.
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

func readCSV(r io.Reader) iter.Seq2[target, error] {
	return func(yield func(target, error) bool) {
		in := csv.NewReader(r)
		in.ReuseRecord = true
		in.FieldsPerRecord = len(csvColumns)
		for first := true; ; first = false {
			fields, err := in.Read()
			var bad *csv.ParseError
			switch {
			case errors.Is(err, io.EOF):
				if first {
					yield(target{}, errors.New("1: the file is empty"))
				}
				return
			case errors.Is(err, csv.ErrFieldCount) && errors.As(err, &bad):
				yield(target{}, fmt.Errorf("%d: %w: the columns are %s", bad.Line, bad.Err, strings.Join(csvColumns, ",")))
				return
			case errors.As(err, &bad):
				yield(target{}, fmt.Errorf("%d: %w", bad.Line, bad.Err))
				return
			case err != nil:
				yield(target{}, err)
				return
			case first:
				if !slices.Equal(fields, csvColumns) {
					yield(target{}, fmt.Errorf("1: the header must be %s, got %s", strings.Join(csvColumns, ","), strings.Join(fields, ",")))
					return
				}
				continue
			}
			line, _ := in.FieldPos(0)
			t, err := parseTarget(fields)
			if err != nil {
				err = fmt.Errorf("%d: %w", line, err)
			}
			if !yield(t, err) || err != nil {
				return
			}
		}
	}
}

func parseTarget(fields []string) (target, error) {
	s, known := strategyOf(fields[0])
	if !known {
		return target{}, fmt.Errorf("promotionType: must be one of %s, got %q", strings.Join(kinds(), ", "), fields[0])
	}
	id, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || id <= 0 {
		return target{}, fmt.Errorf("targetId: must be a whole number > 0, got %q", fields[1])
	}
	value, other, otherName := fields[2], fields[3], csvColumns[3]
	if s.kind == voucherStrategy().kind {
		value, other, otherName = fields[3], fields[2], csvColumns[2]
	}
	if other != "" {
		return target{}, fmt.Errorf("%s: must be empty for %s, got %q", otherName, s.kind, other)
	}
	if _, err := s.record(1, 1, id, value); err != nil {
		return target{}, err
	}
	return target{kind: s.kind, id: id, value: strings.Clone(value)}, nil
}
