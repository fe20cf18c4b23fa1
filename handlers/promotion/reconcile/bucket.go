package reconcile

// Bucket is a way in which the sources can agree or differ about a target.
type Bucket string

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

// Description is a bucket with its meaning.
type Description struct {
	Bucket
	Text string
}

// AllBuckets returns the buckets in the order of the report.
func AllBuckets() []Description {
	return []Description{
		{Matched, "all sources agree"},
		{NotSettled, "not settled yet, or published just now"},
		{Failed, "failed and not charged; replay the dead letter"},
		{Unknown, "perhaps charged; millrace unknown resolve"},
		{PaidNotCharged, "paid in the ledger, no charge in the Money API"},
		{ChargedNotAccepted, "charged, and not in the ledger"},
		{ChargedButDenied, "charged, but FAILED or CANCELLED in the ledger"},
		{ChargedNotSettled, "charged, but not settled in the ledger"},
		{AmountDiffers, "charged with another value than accepted"},
		{ChargedTwice, "charged more than once"},
		{NotAnnounced, "in the ledger, but not in Kafka"},
		{AnnouncedByReplay, "accepted by the replay of a dead letter, without a record"},
		{NotAccepted, "in Kafka, but not in the ledger"},
		{Conflict, "Kafka has another request too; the first one is paid"},
	}
}
