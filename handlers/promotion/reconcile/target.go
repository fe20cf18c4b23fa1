package reconcile

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// Target is one target in all sources. A source without the target is nil.
type Target struct {
	ID     int64
	Record *Entry         // of Kafka
	Row    *ledger.Payout // of the ledger
	Amount int64          // of the row, in minor units; 0 where the type has no amount
	Charge *Entry         // of the Money API

	request, value uint64 // hashes of the row's request and value
}

// Entry is everything that Kafka or the Money API has about one target.
type Entry struct {
	Times  int64 // records of Kafka; executions of a charge
	Amount int64 // of the first one, in minor units; 0 where the type has no amount

	hash  uint64 // of the first one: the request of a record, the value of a charge
	mixed bool   // they don't all have the same hash
	place int64  // of the first record
}

// Place returns partition and offset of the first record, as in 3@17.
func (e *Entry) Place() string {
	place := e.place &^ youngPlace
	return fmt.Sprintf("%d@%d", place>>offsetBits, place&(1<<offsetBits-1))
}

// A place is a partition and an offset in one number. The place of a record that may not have
// reached the ledger yet has one more bit, so that it is sorted after all others.
const (
	offsetBits = 44
	youngPlace = 1 << 62
)

func placeOf(partition int32, offset int64, young bool) int64 {
	place := int64(partition)<<offsetBits | offset&(1<<offsetBits-1)
	if young {
		place |= youngPlace
	}
	return place
}

func hashOf(text []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(text) // it never fails
	return h.Sum64()
}

// state is the row's state at asOf. The other sources may not contain what was settled later.
func (t Target) state(asOf time.Time) rules.State {
	if t.Row.State.Settled() && t.Row.SettledAt.After(asOf) {
		return rules.Pending
	}
	return t.Row.State
}

func (t Target) amountDiffers() bool {
	return t.Row != nil && t.Charge != nil && (t.Charge.mixed || t.Charge.hash != t.value)
}

// buckets returns the buckets of a target. kafka and money say which sources were read in addition
// to the ledger.
func (t Target) buckets(asOf time.Time, kafka, money bool) []Bucket {
	var in []Bucket
	put := func(b Bucket, when bool) {
		if when {
			in = append(in, b)
		}
	}
	charged := t.Charge != nil
	if t.Row == nil {
		put(ChargedNotAccepted, charged)
		young := t.Record != nil && t.Record.place&youngPlace != 0
		put(NotSettled, young)
		put(NotAccepted, t.Record != nil && !young)
	} else {
		switch state := t.state(asOf); state {
		case rules.Success:
			put(PaidNotCharged, money && !charged)
		case rules.Failed, rules.Cancelled:
			put(Failed, state == rules.Failed)
			put(ChargedButDenied, charged)
		case rules.Unknown:
			put(Unknown, true)
			put(ChargedNotSettled, charged)
		default:
			put(NotSettled, true)
			put(ChargedNotSettled, charged)
		}
		put(AmountDiffers, t.amountDiffers())
		if kafka && t.Record == nil && !t.Row.AcceptedAt.After(asOf) {
			put(AnnouncedByReplay, t.Row.AnnouncedByReplay())
			put(NotAnnounced, !t.Row.AnnouncedByReplay())
		}
		put(Conflict, t.Record != nil && (t.Record.mixed || t.Record.hash != t.request))
	}
	put(ChargedTwice, charged && t.Charge.Times > 1)
	if len(in) == 0 {
		in = []Bucket{Matched}
	}
	return in
}

// Bucket is a way in which the sources can agree or differ about a target.
type Bucket = reconcile.Bucket

// The buckets; AllBuckets has their meanings. A target is in Matched, or in all others that apply.
const (
	Matched            Bucket = "matched"
	NotSettled         Bucket = "pending"
	Failed             Bucket = "dead"
	Unknown            Bucket = "unknown"
	PaidNotCharged     Bucket = "paid_not_in_book"
	ChargedNotAccepted Bucket = "in_book_not_in_ledger"
	ChargedButDenied   Bucket = "charged_but_denied"
	ChargedNotSettled  Bucket = "charged_not_settled"
	AmountDiffers      Bucket = "amount_differs"
	ChargedTwice       Bucket = "charged_twice"
	NotAnnounced       Bucket = "not_offered"
	AnnouncedByReplay  Bucket = "announced_by_replay"
	NotAccepted        Bucket = "offered_not_accepted"
	Conflict           Bucket = "conflict"
)

// AllBuckets returns the buckets in the order of the report. A remedy has TYPE, PROMOTION and TARGET in place of a target.
func AllBuckets() []reconcile.Description {
	return []reconcile.Description{
		{Bucket: Matched, Text: "all sources agree"},
		{
			Bucket: NotSettled, Text: "not settled yet, or published just now",
			Remedy: "millrace campaign status TYPE PROMOTION says how fast it is paid and what holds it up",
		},
		{Bucket: Failed, Text: "failed and not charged; replay the dead letter"},
		{
			Bucket: Unknown, Text: "perhaps charged; millrace unknown resolve",
			Remedy: "find out whether it was charged, then millrace unknown resolve TYPE PROMOTION TARGET",
		},
		{
			Bucket: PaidNotCharged, Text: "paid in the ledger, no charge in the Money API",
			Remedy: "millrace campaign explain TYPE PROMOTION TARGET has the transaction key: ask who runs the Money API for it",
		},
		{
			Bucket: ChargedNotAccepted, Text: "charged, and not in the ledger",
			Remedy: "find who charged it without this ledger, such as another deployment, or a ledger from before a restore",
		},
		{
			Bucket: ChargedButDenied, Text: "charged, but FAILED or CANCELLED in the ledger",
			Remedy: "millrace campaign explain TYPE PROMOTION TARGET --query-api has both sides: do not replay it, and correct it with who runs the Money API",
		},
		{
			Bucket: ChargedNotSettled, Text: "charged, but not settled in the ledger",
			Remedy: "compare again after a minute; if it stays, millrace unknown resolve TYPE PROMOTION TARGET --paid records the charge",
		},
		{
			Bucket: AmountDiffers, Text: "charged with another value than accepted",
			Remedy: "millrace campaign explain TYPE PROMOTION TARGET has the request: compare it with the charge, and correct the charge",
		},
		{
			Bucket: ChargedTwice, Text: "charged more than once",
			Remedy: "tell who runs the Money API: it did not honour its idempotency key",
		},
		{
			Bucket: NotAnnounced, Text: "in the ledger, but not in Kafka",
			Remedy: "find who announced it: configs/RUNBOOK.md, MillraceUnannounced",
		},
		{Bucket: AnnouncedByReplay, Text: "accepted by the replay of a dead letter, without a record"},
		{
			Bucket: NotAccepted, Text: "in Kafka, but not in the ledger",
			Remedy: "millrace routes says whether its record still waits; otherwise look in millrace deadletter list",
		},
		{Bucket: Conflict, Text: "Kafka has another request too; the first one is paid"},
	}
}
