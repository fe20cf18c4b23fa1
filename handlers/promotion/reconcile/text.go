package reconcile

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/pipeline/app"
)

// Write writes the report as text, with the verdict last.
func (r *Report) Write(out io.Writer) error {
	fmt.Fprintf(out, "%s:%d, %s in all sources\n\n", r.Type, r.Promotion, app.Plural(r.Targets, "target"))
	w := app.Table(out)
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

// WriteLedger writes the totals of the ledger.
func (t *Totals) WriteLedger(w io.Writer) {
	WriteTotal(w, "accepted", t.Accepted, "payouts in the ledger")
	WriteTotal(w, "paid", t.Paid, "")
	WriteTotal(w, "failed", t.Failed, "refused for good, nothing charged")
	WriteTotal(w, "unknown", t.Unknown, "perhaps charged, an operator decides")
	WriteTotal(w, "cancelled", t.Cancelled, "")
	WriteTotal(w, "pending", t.Pending, "not settled yet")
	WriteTotal(w, "dead", t.Dead, "dead letters, conflicts included")
	WriteTotal(w, "conflict", t.Conflict, "same target, other request")
}

// WriteMoneyAPI writes the totals of the Money API.
func (t *Totals) WriteMoneyAPI(w io.Writer) {
	WriteTotal(w, "charged", t.Charged, "according to the Money API")
	WriteTotal(w, "double charged", t.DoubleCharged, "")
	WriteTotal(w, "missing", t.Missing, "paid, but not charged by the Money API")
	WriteTotal(w, "unbooked", t.Unbooked, "charged, but not settled in the ledger yet")
	WriteTotal(w, "unexplained", t.Unexplained, "charged, but not to be paid by the ledger")
	WriteTotal(w, "amount differs", t.AmountDiffers, "")
}

// WriteTotal writes one number with its meaning, in the columns of WriteLedger.
func WriteTotal(w io.Writer, name string, n int64, text string) {
	fmt.Fprintf(w, "  %-15s %12s  %s\n", name, app.Thousands(n), text)
}
