package reconcile

import (
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// Table is a CSV file with one line per target. Write is an Input.Each.
type Table struct {
	Path      string // empty: nothing is written
	Promotion payouts.Promotion
	All       bool // also targets in Matched
	Kafka     bool // Kafka is read: a target without records has 0 of them
	MoneyAPI  bool // the Money API is read

	out *reconcile.Table
}

func columns() []string {
	return []string{"type", "promotion", "target", "buckets", "state", "attempts", "class", "transaction_key",
		"offers", "offered_amount", "accepted_amount", "charges", "charged_amount", "first_offer", "origin"}
}

// Check reports whether the file's folder exists. The file itself is written from the first target
// on, so that an older one stays until then.
func (t *Table) Check() error { return t.file().Check() }

func (t *Table) file() *reconcile.Table {
	if t.out == nil {
		t.out = &reconcile.Table{Path: t.Path, Columns: columns()}
	}
	return t.out
}

// Write writes the line of a target.
func (t *Table) Write(target Target, in []Bucket) error {
	if t.Path == "" {
		return nil
	}
	if !t.All && slices.Contains(in, Matched) {
		return t.file().Begin()
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	buckets := make([]string, len(in))
	for i, b := range in {
		buckets[i] = string(b)
	}
	line := make([]string, len(columns()))
	copy(line, []string{string(t.Promotion.Type), number(t.Promotion.ID), number(target.ID), strings.Join(buckets, " ")})
	if row := target.Row; row != nil {
		copy(line[4:], []string{string(row.State), strconv.Itoa(row.Attempts), app.Cell(row.LastClass), app.Cell(row.Receipt)})
		line[10], line[14] = number(target.Amount), app.Cell(row.Origin)
	}
	if t.Kafka {
		line[8] = "0"
	}
	if t.MoneyAPI {
		line[11] = "0"
	}
	if r := target.Record; r != nil {
		line[8], line[9], line[13] = number(r.Times), number(r.Amount), r.Place()
	}
	if c := target.Charge; c != nil {
		line[11], line[12] = number(c.Times), number(c.Amount)
	}
	return t.file().Write(line)
}

// Close ends the file. It is called once, also after an error.
func (t *Table) Close() error { return t.file().Close() }
