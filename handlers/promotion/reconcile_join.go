package promotion

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// whatOf stands for what is to be paid.
func whatOf(amount int64, voucher string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, strconv.FormatInt(amount, 10)+"/"+voucher) // a hash takes everything
	return h.Sum64()
}

// whatRequest stands for a whole request, as the ledger compares a second one with the first.
func whatRequest(request []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(request) // a hash takes everything
	return h.Sum64()
}

// asked is what requests of every type ask for.
type asked struct {
	Amount    int64  `json:"amount"`
	VoucherID string `json:"voucherId"`
}

func readAsked(request []byte) (asked, error) {
	var a asked
	err := json.Unmarshal(request, &a)
	return a, err
}

func (a asked) what() uint64 { return whatOf(a.Amount, a.VoucherID) }

// joined is one target in all books. Whatever a book does not have is nil.
type joined struct {
	target int64
	offer  *entry        // what Kafka offers: whole requests
	row    *ledger.Entry // what the ledger holds
	asked  asked         // by the row
	charge *entry        // what the Money API's book says: amounts and vouchers
}

// join goes through all books in order of target, and calls each once a target. rows calls its function for every row of
// the ledger in that order. It holds one target at a time.
func join(offers, charges *sortedBook, rows func(func(ledger.Entry) error) error, each func(joined) error) error {
	one := func(j joined) (err error) {
		if j.offer, err = offers.take(j.target); err != nil {
			return err
		}
		if j.charge, err = charges.take(j.target); err != nil {
			return err
		}
		return each(j)
	}
	// before goes through the targets that are in no row and come before a row's; without a limit through all.
	before := func(limit int64, limited bool) error {
		for {
			target, found := offers.peek()
			if t, ok := charges.peek(); ok && (!found || t < target) {
				target, found = t, true
			}
			if !found || limited && target >= limit {
				return nil
			}
			if err := one(joined{target: target}); err != nil {
				return err
			}
		}
	}
	err := rows(func(row ledger.Entry) error {
		if err := before(row.Target, true); err != nil {
			return err
		}
		a, err := readAsked(row.Request)
		if err != nil {
			return fmt.Errorf("row %s: %w", row.Key, err)
		}
		return one(joined{target: row.Target, row: &row, asked: a})
	})
	if err != nil {
		return err
	}
	return before(0, false)
}

// state is the row's state at the time the other books were begun to be read: what was settled since is not in them.
func (j joined) state(asOf time.Time) ledger.State {
	if j.row.State.Settled() && j.row.SettledAt.After(asOf) {
		return ledger.Pending
	}
	return j.row.State
}

// add counts a target in the two books about money; money: the Money API's was read.
func (b *Books) add(j joined, asOf time.Time, money bool) {
	if j.charge != nil {
		b.Charged++
		if j.charge.times > 1 {
			b.DoubleCharged++
		}
	}
	if j.row == nil {
		if j.charge != nil {
			b.Unexplained++
		}
		return
	}
	b.Accepted++
	state := j.state(asOf)
	b.count(state, j.charge != nil)
	if money && state == ledger.Success && j.charge == nil {
		b.Missing++
	}
	if j.amountDiffers() {
		b.AmountDiffers++
	}
}

func (j joined) amountDiffers() bool {
	return j.row != nil && j.charge != nil && (j.charge.mixed || j.charge.what != j.asked.what())
}

// bucket is a way in which the books can agree or differ about a target.
type bucket string

// The buckets. A target is in matched, or in all others that hold for it.
const (
	bucketMatched     bucket = "matched"               // paid and charged once, or cancelled and not charged
	bucketPending     bucket = "pending"               // not settled
	bucketDead        bucket = "dead"                  // given up, certainly not charged: its dead letter may be replayed
	bucketUnknown     bucket = "unknown"               // perhaps charged, given up: for a person
	bucketMissing     bucket = "paid_not_in_book"      // the ledger says paid, the Money API's book does not
	bucketUnexplained bucket = "in_book_not_in_ledger" // charged, and never accepted here
	bucketDenied      bucket = "charged_but_denied"    // charged, and the ledger says it never was
	bucketUnbooked    bucket = "charged_not_settled"   // charged, and the ledger does not know yet
	bucketAmount      bucket = "amount_differs"        // charged another amount or voucher than accepted
	bucketTwice       bucket = "charged_twice"         // charged more than once
	bucketNotOffered  bucket = "not_offered"           // in the ledger, and not in Kafka
	bucketReplayed    bucket = "announced_by_replay"   // not in Kafka: a person replayed a dead letter of class unannounced
	bucketNotAccepted bucket = "offered_not_accepted"  // in Kafka, and not in the ledger
	bucketConflict    bucket = "conflict"              // Kafka offers it with another request too: the first one wins
)

// shownBucket is a bucket with what it means.
type shownBucket struct {
	bucket
	about string
}

// allBuckets returns them in the order in which they are shown.
func allBuckets() []shownBucket {
	return []shownBucket{
		{bucketMatched, "the books agree"},
		{bucketPending, "not settled yet, or published just now"},
		{bucketDead, "given up and not charged; replay the dead letter"},
		{bucketUnknown, "perhaps charged; millrace unknown resolve"},
		{bucketMissing, "the ledger says paid, the Money API's book does not"},
		{bucketUnexplained, "charged, and not in the ledger"},
		{bucketDenied, "charged, but FAILED or CANCELLED in the ledger"},
		{bucketUnbooked, "charged, but the ledger does not know yet"},
		{bucketAmount, "charged another amount or voucher than was accepted"},
		{bucketTwice, "charged more than once"},
		{bucketNotOffered, "in the ledger, but not in Kafka"},
		{bucketReplayed, "accepted because a person replayed a dead letter, without a record"},
		{bucketNotAccepted, "in Kafka, but not in the ledger"},
		{bucketConflict, "Kafka offers another request too; the first one wins"},
	}
}

// buckets sorts a target. kafka, money: what Kafka offers was read, and the Money API's book.
func (j joined) buckets(asOf time.Time, kafka, money bool) []bucket {
	var in []bucket
	put := func(b bucket, when bool) {
		if when {
			in = append(in, b)
		}
	}
	charged := j.charge != nil
	if j.row == nil {
		put(bucketUnexplained, charged)
		young := j.offer != nil && j.offer.place&youngPlace != 0
		put(bucketPending, young)
		put(bucketNotAccepted, j.offer != nil && !young)
	} else {
		switch state := j.state(asOf); state {
		case ledger.Success:
			put(bucketMissing, money && !charged)
		case ledger.Failed, ledger.Cancelled:
			put(bucketDead, state == ledger.Failed)
			put(bucketDenied, charged)
		case ledger.Unknown:
			put(bucketUnknown, true)
			put(bucketUnbooked, charged)
		default:
			put(bucketPending, true)
			put(bucketUnbooked, charged)
		}
		put(bucketAmount, j.amountDiffers())
		if kafka && j.offer == nil && !j.row.AcceptedAt.After(asOf) {
			put(bucketReplayed, j.row.AnnouncedByReplay())
			put(bucketNotOffered, !j.row.AnnouncedByReplay())
		}
		put(bucketConflict, j.offer != nil && (j.offer.mixed || j.offer.what != whatRequest(j.row.Request)))
	}
	put(bucketTwice, charged && j.charge.times > 1)
	if len(in) == 0 {
		in = []bucket{bucketMatched}
	}
	return in
}
