// Package rules has the rules of an effect as pure functions: no SQL, no clock, no I/O.
//
// [Policy.Apply] is the transition function. It takes a row and an event. It returns the new row,
// the effects that are written in the same transaction, and the decision for the caller. The
// ledger reads the row, calls Apply, and writes both in one transaction.
//
// # Non-obvious
//
//   - A row has a queue location (none, stream, retry) and a version. Every change increments the
//     version, also a change from none to none. An event that was decided with an older version
//     has no effect: a reader may have used the entry between the enqueue and its confirmation.
//   - While a row is SENDING its queue location is retry, due at the end of the lease. So the
//     feeder finds the effect of a dead worker like every other overdue retry.
//   - FirstSentAt is the start of the oldest request that may have taken effect. It is cleared when an
//     attempt is known not to have taken effect.
//   - KeyFirstUsedAt is the first time that the idempotency key may have reached the far side:
//     docs/decisions/0012-key-age.md. Only a call of which no byte left the process clears it.
//   - A released call spends no attempt, because the far side refused to work for now, the credential
//     was refused, or a proxy answered. Released calls are counted while other effects are
//     answered, so that an effect ends even if every call for it is released.
//   - UNKNOWN follows only after lookups: docs/decisions/0013-uncertain-charge.md. Only a
//     resolution by an operator clears MaybeDone. No operator's action clears KeyFirstUsedAt.
//   - [Repeat] decides what follows a call that may have taken effect. The far side is ByKey with
//     lookups. The other far sides have the same table and the same random histories in the tests.
//   - Only an operator changes a settled effect. Each such change has a new epoch, so that a late
//     answer changes nothing.
package rules
