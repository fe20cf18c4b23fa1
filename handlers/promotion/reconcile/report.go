package reconcile

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// Report is the result of a comparison.
type Report struct {
	Type      payouts.Type `json:"type"`
	Promotion int64        `json:"promotion"`
	Totals
	// Kept are the totals that the ledger keeps of settled payouts. Null: they changed while its rows were read.
	Kept     *reconcile.Kept `json:"kept"`
	Balanced bool            `json:"balanced"`
	// Targets is the number of different targets in all sources. Buckets count them, and the lowest ones of a bucket
	// are its examples.
	Targets int64 `json:"targets"`
	reconcile.Tally[int64]
	Kafka *Topic `json:"kafka"` // null: not read
	// its charges were read; without them no report is balanced
	MoneyAPI bool `json:"money_api"`
	// DeadWaiting are the dead letters of the promotion that wait for a person, counted in their store, while
	// Totals.Dead are those that the ledger has written. Null: not known, because there is no store, or as
	// DeadNotKnown says.
	DeadWaiting  *int64 `json:"dead_waiting"`
	DeadNotKnown string `json:"dead_not_known,omitempty"`

	unannounced bool
}

// Topic is what Kafka's publish topic contains.
type Topic struct {
	Topic       string `json:"topic"`
	Read        int64  `json:"read"`        // records in the topic
	Records     int64  `json:"records"`     // records of this promotion
	Undecodable int64  `json:"undecodable"` // records of any promotion that can't be decoded
	// Complete: retention has removed no record.
	Complete bool `json:"complete"`
}

// Totals are the numbers of the ledger and of the Money API's charges. Dead overlaps with the
// states.
type Totals struct {
	// rows of the ledger: paid + failed + unknown + cancelled + pending
	Accepted  int64 `json:"accepted"`
	Paid      int64 `json:"paid"`      // SUCCESS
	Failed    int64 `json:"failed"`    // certainly not charged, not retried
	Unknown   int64 `json:"unknown"`   // perhaps charged, not retried: an operator decides
	Cancelled int64 `json:"cancelled"` // certainly not charged
	Pending   int64 `json:"pending"`   // not settled yet
	Dead      int64 `json:"dead"`      // dead letters of the ledger, conflicts included
	// records whose request differs from the first one of their target
	Conflict      int64 `json:"conflict"`
	Charged       int64 `json:"charged"` // keys that the Money API has charged
	DoubleCharged int64 `json:"double_charged"`
	// Missing is the number of SUCCESS rows without a charge. Unexplained is the number of charges
	// without a row, or whose row is FAILED or CANCELLED. AmountDiffers is the number of charges
	// with another value than accepted.
	Missing       int64 `json:"missing"`
	Unexplained   int64 `json:"unexplained"`
	AmountDiffers int64 `json:"amount_differs"`
	// Unbooked is the number of charges whose row is not settled or UNKNOWN.
	Unbooked int64 `json:"unbooked"`
}

// Balance reports whether each accepted payout is settled, none is UNKNOWN, and ledger and Money
// API agree.
func (t Totals) Balance() bool {
	return t.Pending == 0 && t.Unknown == 0 && t.Accepted == t.Paid+t.Failed+t.Cancelled &&
		t.Charged == t.Paid && t.DoubleCharged == 0 && t.Missing == 0 && t.Unexplained == 0 && t.AmountDiffers == 0 && t.Unbooked == 0
}

// Add adds the totals of another type.
func (t *Totals) Add(o Totals) {
	t.Accepted += o.Accepted
	t.Paid += o.Paid
	t.Failed += o.Failed
	t.Unknown += o.Unknown
	t.Cancelled += o.Cancelled
	t.Pending += o.Pending
	t.Dead += o.Dead
	t.Conflict += o.Conflict
	t.Charged += o.Charged
	t.DoubleCharged += o.DoubleCharged
	t.Missing += o.Missing
	t.Unexplained += o.Unexplained
	t.AmountDiffers += o.AmountDiffers
	t.Unbooked += o.Unbooked
}

// count counts a target in ledger and Money API.
func (t *Totals) count(target Target, asOf time.Time) {
	if target.Charge != nil {
		t.Charged++
	}
	if target.Row == nil {
		return
	}
	t.Accepted++
	switch target.state(asOf) {
	case rules.Success:
		t.Paid++
	case rules.Failed:
		t.Failed++
	case rules.Cancelled:
		t.Cancelled++
	case rules.Unknown:
		t.Unknown++
	default:
		t.Pending++
	}
}

// compared sets the totals that are sums of buckets.
func (t *Totals) compared(in map[Bucket]int64) {
	t.DoubleCharged, t.AmountDiffers = in[ChargedTwice], in[AmountDiffers]
	t.Missing, t.Unbooked = in[PaidNotCharged], in[ChargedNotSettled]
	t.Unexplained = in[ChargedNotAccepted] + in[ChargedButDenied]
}

// notAnnounced returns the number of payouts that certainly had no record. Retention may have
// removed a record, and the setting accept_unannounced accepts payouts without one.
func (r *Report) notAnnounced() int64 {
	if r.Kafka == nil || !r.Kafka.Complete || r.unannounced {
		return 0
	}
	return r.Buckets[NotAnnounced]
}

// Problem returns what is left to do, with the targets that it is about, or nil: all records are accepted, all payouts
// are settled, and the sources that were read agree.
func (r *Report) Problem() error {
	problem := r.problem()
	if problem == nil {
		return nil
	}
	if causes := r.causes(); causes != "" {
		problem = fmt.Errorf("%w; %s", problem, causes)
	}
	return problem
}

// miscounted reports whether the ledger's totals are not those of its rows.
func (r *Report) miscounted() bool {
	return r.Kept != nil && *r.Kept != reconcile.Kept{Done: r.Paid, Failed: r.Failed, Unknown: r.Unknown, Cancelled: r.Cancelled}
}

// causes names the targets in the buckets that break the books or are left to do, and what to do about them.
func (r *Report) causes() string {
	var all []string
	for _, b := range AllBuckets() {
		n := r.Buckets[b.Bucket]
		if b.Bucket == NotAnnounced {
			n = r.notAnnounced()
		}
		if n == 0 || b.Remedy == "" {
			continue
		}
		remedy := strings.NewReplacer("TYPE", string(r.Type), "PROMOTION", strconv.FormatInt(r.Promotion, 10), "TARGET", r.Example(b.Bucket, "TARGET")).Replace(b.Remedy)
		all = append(all, fmt.Sprintf("%s, %s: %s", r.Named(b.Bucket, n, "target"), b.Bucket, remedy))
	}
	return strings.Join(all, "; ")
}

// problem is Problem without the targets.
func (r *Report) problem() error {
	lost, open := r.Buckets[NotAccepted], r.Buckets[NotSettled]+r.Unknown
	switch {
	case r.miscounted():
		return fmt.Errorf("the ledger keeps the totals paid %d, failed %d, unknown %d, cancelled %d, which are not those of its rows. The rows decide, so nothing was lost or doubled by it, "+
			"but another program has written to the tables, or the ledger has a fault that should be reported", r.Kept.Done, r.Kept.Failed, r.Kept.Unknown, r.Kept.Cancelled)
	case r.notAnnounced() > 0:
		return fmt.Errorf("payouts are in the ledger that no record of %s announced: %d. The books DON'T balance", r.Kafka.Topic, r.notAnnounced())
	case r.MoneyAPI && !r.Balanced:
		return errors.New("the books DON'T balance")
	case r.MoneyAPI && lost > 0:
		return fmt.Errorf("ledger and Money API balance, but targets in Kafka are not in the ledger: %d", lost)
	case lost > 0:
		return fmt.Errorf("targets in Kafka are not in the ledger: %d", lost)
	case open > 0:
		return fmt.Errorf("payouts are not settled, or UNKNOWN: %d", open)
	}
	return nil
}

// Verdict is the last sentence of a report without a Problem. It claims no more than was read.
func (r *Report) Verdict() string {
	switch {
	case !r.MoneyAPI && !r.Kafka.Complete:
		return "All that Kafka still contains is in the ledger and settled; the Money API was not read."
	case !r.MoneyAPI:
		return "All that Kafka contains is in the ledger and settled; the Money API was not read."
	case r.Kafka == nil:
		return "Ledger and Money API balance; Kafka was not read."
	case !r.Kafka.Complete:
		return "The books balance: nothing that Kafka still contains is lost, nothing paid twice."
	}
	return "The books balance: nothing lost, nothing paid twice."
}

// Write writes the report as text, with the verdict last.
func (r *Report) Write(out io.Writer) error {
	fmt.Fprintf(out, "%s:%d, %s in all sources\n\n", r.Type, r.Promotion, app.Plural(r.Targets, "target"))
	w := app.Table(out)
	fmt.Fprintf(w, "  BUCKET\tTARGETS\tMEANING\tEXAMPLES\n")
	for _, b := range AllBuckets() {
		n := r.Buckets[b.Bucket]
		if n == 0 && b.Bucket != Matched {
			continue
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", b.Bucket, app.Thousands(n), b.Text, r.List(b.Bucket, n))
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
	r.writeDead(out)
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

// WriteLedger writes the totals of the ledger.
func (t *Totals) WriteLedger(w io.Writer) {
	WriteTotal(w, "accepted", t.Accepted, "payouts in the ledger")
	WriteTotal(w, "paid", t.Paid, "")
	WriteTotal(w, "failed", t.Failed, "refused for good, nothing charged")
	WriteTotal(w, "unknown", t.Unknown, "perhaps charged, an operator decides")
	WriteTotal(w, "cancelled", t.Cancelled, "")
	WriteTotal(w, "pending", t.Pending, "not settled yet")
	WriteTotal(w, "dead", t.Dead, "dead letters that the ledger has written so far, conflicts included")
	WriteTotal(w, "conflict", t.Conflict, "same target, other request")
}

// writeDead writes what the store of dead letters says.
func (r *Report) writeDead(w io.Writer) {
	switch {
	case r.DeadWaiting != nil:
		WriteTotal(w, "dead, waiting", *r.DeadWaiting, "dead letters in their store that wait for a person")
	case r.DeadNotKnown != "":
		fmt.Fprintf(w, "How many dead letters wait for a person is not known: %s.\n", app.Printable(r.DeadNotKnown))
	}
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
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("  %-15s %12s  %s", name, app.Thousands(n), text), " "))
}
