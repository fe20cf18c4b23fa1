// Package reconcile compares three sources about one promotion, target by target. The sources are
// the records of Kafka's publish topic, the rows of the ledger, and the charges of the Money API.
//
// Compare reads the sources that an Input gives it and opens nothing itself. Records and charges
// come in any order: they are sorted in a temporary file, so that memory does not grow with the
// promotion. Rows come in order of target.
//
// # Non-obvious
//
//   - A report is a snapshot at Input.AsOf, a time of the ledger's clock before any source was
//     read. A payout that was accepted or settled later counts as pending, because the other
//     sources may not contain it.
//   - A record is compared as a request, in the form in which this version writes it
//     (promotiontype.Payout.Request). The ledger compares a second record with the first one in the
//     same way.
//   - A charge is compared by its value only: the Money API's list has no requests.
//   - A source that was not read proves nothing. Without charges no report is balanced. Without
//     records, or when retention has removed the first ones, a row without a record is no finding.
package reconcile
