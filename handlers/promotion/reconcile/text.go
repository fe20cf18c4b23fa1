package reconcile

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/millrace-io/millrace/pipeline/app"
)

// Write writes the report as text, with the verdict last.
func (r *Report) Write(out io.Writer) error {
	fmt.Fprintf(out, "%s:%d, %s in all sources\n\n", r.Type, r.Promotion, app.Plural(r.Targets, "target"))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  BUCKET\tTARGETS\t\tEXAMPLES\n")
	for _, b := range AllBuckets() {
		n := r.Buckets[b.Bucket]
		if n == 0 && b.Bucket != Matched {
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", b.Bucket, app.Thousands(n), b.Text, list(r.Examples[b.Bucket], n))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if k := r.Kafka; k != nil {
		fmt.Fprintf(out, "\n%s: %s, %s of this promotion.\n", k.Topic, app.Plural(k.Read, "record"), app.Thousands(k.Records))
		if k.Undecodable > 0 {
			fmt.Fprintf(out, "%s of that topic can't be decoded. They may belong to any promotion and should be dead letters (millrace deadletter list).\n",
				app.Plural(k.Undecodable, "record"))
		}
		if !k.Complete && r.Buckets[NotAnnounced] > 0 {
			fmt.Fprintf(out, "Retention has removed the topic's first records, which may explain the targets that are not in Kafka.\n")
		}
	}
	fmt.Fprintln(out)
	r.WriteLedger(out)
	if r.MoneyAPI {
		r.WriteMoneyAPI(out)
	}
	verdict := r.Verdict
	if problem := r.Problem(); problem != nil {
		verdict = func() string { text := problem.Error(); return strings.ToUpper(text[:1]) + text[1:] + "." }
	}
	fmt.Fprintf(out, "\n%s\n", verdict())
	return nil
}

// list names targets, and shows that there are more.
func list(targets []int64, n int64) string {
	var all []string
	for _, t := range targets {
		all = append(all, strconv.FormatInt(t, 10))
	}
	if len(targets) > 0 && int64(len(targets)) < n {
		all = append(all, "…")
	}
	return strings.Join(all, " ")
}

// total is a number with its meaning.
type total struct {
	name string
	n    int64
	text string
}

// WriteLedger writes the totals of the ledger.
func (t *Totals) WriteLedger(w io.Writer) {
	writeTotals(w, []total{
		{"accepted", t.Accepted, "payouts in the ledger"},
		{"paid", t.Paid, ""},
		{"failed", t.Failed, "refused for good, nothing charged"},
		{"unknown", t.Unknown, "perhaps charged, an operator decides"},
		{"cancelled", t.Cancelled, ""},
		{"pending", t.Pending, "not settled yet"},
		{"dead", t.Dead, "dead letters, conflicts included"},
		{"conflict", t.Conflict, "same target, other request"},
	})
}

// WriteMoneyAPI writes the totals of the Money API.
func (t *Totals) WriteMoneyAPI(w io.Writer) {
	writeTotals(w, []total{
		{"charged", t.Charged, "according to the Money API"},
		{"double charged", t.DoubleCharged, ""},
		{"missing", t.Missing, "paid, but not charged by the Money API"},
		{"unbooked", t.Unbooked, "charged, but not settled in the ledger yet"},
		{"unexplained", t.Unexplained, "charged, but not to be paid by the ledger"},
		{"amount differs", t.AmountDiffers, ""},
	})
}

func writeTotals(w io.Writer, all []total) {
	for _, line := range all {
		WriteTotal(w, line.name, line.n, line.text)
	}
}

// WriteTotal writes one number with its meaning, in the columns of WriteLedger.
func WriteTotal(w io.Writer, name string, n int64, text string) {
	fmt.Fprintf(w, "  %-15s %12s  %s\n", name, app.Thousands(n), text)
}
