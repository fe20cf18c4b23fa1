package reconcile

import (
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/app"
)

// PairColumns returns the columns of Pair.Line.
func PairColumns() []string {
	return []string{"kind", "group", "effect", "buckets", "state", "receipt", "sum", "accepted_at", "settled_at", "book_line", "book_times", "book_receipt", "book_sum"}
}

// Line returns the line of an effect in a Table. No cell is a formula.
func (p Pair) Line(kind, group string, in []Bucket) []string {
	names := make([]string, len(in))
	for i, b := range in {
		names[i] = string(b)
	}
	line := make([]string, len(PairColumns()))
	copy(line, []string{app.Cell(kind), app.Cell(group), app.Cell(p.Name), strings.Join(names, " ")})
	number := func(n int64, known bool) string {
		if !known {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	if e := p.Effect; e != nil {
		copy(line[4:], []string{string(e.State), app.Cell(e.Receipt), number(e.Sum, e.HasSum), textOf(e.AcceptedAt), textOf(e.SettledAt)})
	}
	if e := p.Entry; e != nil {
		copy(line[9:], []string{strconv.Itoa(e.Line), number(e.Times, true), app.Cell(e.Receipt), number(e.Sum, e.HasSum)})
	}
	return line
}

func textOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
