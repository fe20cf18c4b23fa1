// Package reconcile compares the effects of a ledger with the far side's own book, one by one. It knows no
// business and opens no database: Compare gets the effects from its caller and reads the book, a file, itself.
//
// Sorter, Tally and Table are the parts that a comparison of other sources needs, too.
//
// # Non-obvious
//
//   - Effects and lines of the book come in any order, and are sorted in temporary files by a hash of the text by
//     which they are compared. The ledger has its effects in the order of their ids, but the book may name them by
//     an idempotency key from which nobody can compute the id.
//   - The book is older than the effects that are read. An effect that was accepted or done after Input.AsOf and is
//     not in the book is therefore no finding, while an effect that is in both has no time.
//   - A receipt and a sum are compared only where both sides have one.
package reconcile
