package reconcile

import "github.com/millrace-io/millrace/plugins/once/ledger/rules"

// The buckets of Compare; Buckets has their meanings. An effect is in Matched, or in all others that apply.
const (
	Matched         Bucket = "matched"
	Later           Bucket = "later"
	Failed          Bucket = "failed"
	Pending         Bucket = "pending"
	Unclear         Bucket = "unclear"
	Unknown         Bucket = "unknown"
	UnknownLater    Bucket = "unknown_later"
	DoneNotInBook   Bucket = "done_not_in_book"
	InBookPending   Bucket = "in_book_pending"
	InBookRefused   Bucket = "in_book_refused"
	InBookUnclear   Bucket = "in_book_unclear"
	InBookUnknown   Bucket = "in_book_unknown"
	InBookFailed    Bucket = "in_book_failed"
	InBookCancelled Bucket = "in_book_cancelled"
	InBookNotLedger Bucket = "in_book_not_in_ledger"
	InBookTwice     Bucket = "in_book_twice"
	ReceiptDiffers  Bucket = "receipt_differs"
	SumDiffers      Bucket = "sum_differs"
)

// Buckets returns the buckets in the order of the report.
func Buckets() []Description {
	return []Description{
		{Matched, "done and once in the book, or cancelled and not in it", ""},
		{Later, "accepted or done after the book's time, so its absence proves nothing", ""},
		{Failed, "failed, and not in the book", ""},
		{Pending, "not done yet, and not in the book", "once status --kind KIND --group GROUP says what it waits for"},
		{Unclear, "perhaps done, not settled, and not in the book",
			"once explain --kind KIND --group GROUP --id ID says when it is called for or looked up; compare again after that, with a newer book"},
		{Unknown, "UNKNOWN, and not in the book",
			"if the book is complete it was not done: once resolve --kind KIND --group GROUP --id ID --not-done"},
		{UnknownLater, "accepted or ended UNKNOWN after the book's time, so its absence proves nothing", "compare again, with a newer book"},
		{DoneNotInBook, "done in the ledger, and not in the book: lost, or the book is not complete",
			"ask who runs the far side for its receipt (once explain --kind KIND --group GROUP --id ID), and do not replay it before they have answered"},
		{InBookPending, "in the book, and never called for by this ledger",
			"find who did it without this ledger, and once pause --kind KIND --group GROUP before it is done again"},
		{InBookRefused, "in the book, and all answers in the ledger say that it was not done",
			"once pause --kind KIND --group GROUP before it is done again; then ask who runs the far side which of its answers (once explain --kind KIND --group GROUP --id ID) it gives after it has done an effect, and do not map that one to a class such as retry"},
		{InBookUnclear, "in the book, and perhaps done in the ledger, which is not settled",
			"compare again when the call has ended; once explain --kind KIND --group GROUP --id ID says when"},
		{InBookUnknown, "in the book, and UNKNOWN in the ledger",
			"once resolve --kind KIND --group GROUP --id ID --done RECEIPT, with the receipt of the book"},
		{InBookFailed, "in the book, and failed in the ledger", "do not replay it, and correct it with who runs the far side"},
		{InBookCancelled, "in the book, and cancelled in the ledger", "correct it with who runs the far side"},
		{InBookNotLedger, "in the book, and not in the ledger",
			"find who did it without this ledger, such as another deployment, or a ledger from before a restore"},
		{InBookTwice, "more than once in the book: doubled",
			"correct it with who runs the far side, which did not honour its idempotency key, unless the kind's Repeat is always or its lookups were wrong"},
		{ReceiptDiffers, "the book has another receipt than the ledger",
			"compare both: once explain --kind KIND --group GROUP --id ID; it may have been done a second time under another name"},
		{SumDiffers, "the book has another sum than the ledger",
			"compare the request (once explain --kind KIND --group GROUP --id ID) with what the far side did"},
	}
}

// buckets returns the buckets of an effect.
func (p Pair) buckets() []Bucket {
	var in []Bucket
	put := func(b Bucket, when bool) {
		if when {
			in = append(in, b)
		}
	}
	booked := p.Entry != nil
	if p.Effect == nil {
		put(InBookNotLedger, true)
	} else {
		absent, present := p.byState()
		switch {
		case booked:
			put(present, present != "")
		case p.Later && absent == Unknown:
			put(UnknownLater, true)
		case p.Later && absent != Failed && absent != "":
			put(Later, true)
		default:
			put(absent, absent != "")
		}
	}
	if booked {
		put(InBookTwice, p.Entry.Times > 1)
		put(ReceiptDiffers, p.Entry.otherReceipt)
		put(SumDiffers, p.Entry.otherSum)
	}
	if len(in) == 0 {
		in = []Bucket{Matched}
	}
	return in
}

// byState returns the bucket of an effect that is absent in the book, and that of one that is present. An empty one
// is no finding.
func (p Pair) byState() (absent, present Bucket) {
	switch p.Effect.State {
	case rules.Success:
		return DoneNotInBook, ""
	case rules.Failed:
		return Failed, InBookFailed
	case rules.Cancelled:
		return "", InBookCancelled
	case rules.Unknown:
		return Unknown, InBookUnknown
	}
	switch {
	case p.Effect.PerhapsDone:
		return Unclear, InBookUnclear
	case p.Effect.Sent:
		return Pending, InBookRefused
	}
	return Pending, InBookPending
}
