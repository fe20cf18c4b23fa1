// Package once has what kinds of side effects share: the key of an effect, one attempt at the far side, and
// the answer, which says as a class whether the effect was done.
//
// A handler that sends an e-mail or creates an invoice must do so once, although a record may be delivered
// twice and a call may end without an answer. What can be promised depends on the far side, that is, on the
// API that is called: Repeat says what it does with a second request. Package oncehttp calls HTTP APIs in
// these terms.
//
// # Non-obvious
//
//   - The zero Answer is Unclear, because only that class can neither lose an effect nor double it. A caller
//     that forgets to fill an Answer therefore gets a lookup or an operator, and never a wrong "done".
//   - Unrecognized and Rejected differ by who answered. A proxy may refuse a request that it has passed on, so
//     its refusal proves nothing.
package once
