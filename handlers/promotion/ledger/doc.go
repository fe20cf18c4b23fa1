// Package ledger stores every payout: whether it was accepted, which worker may call the Money
// API for it, and how it ended. Only the ledger decides. Entries and retry records may be lost,
// duplicated and restored.
//
// The life of a payout:
//
//	Accept ── PENDING ── Begin ── SENDING ── Settle ── SUCCESS | FAILED | UNKNOWN
//	                       ▲                   │
//	                       └─ ERROR, AMBIGUOUS ┘        Cancel: PENDING, ERROR ── CANCELLED
//
//	An operator: Replay:  FAILED ── PENDING, UNKNOWN ── AMBIGUOUS
//	             Resolve: UNKNOWN ── SUCCESS | FAILED
//
// Its files:
//
//   - The API: [Ledger] with [Open], Accept, Begin and Settle (payouts); steer.go, replay.go,
//     resolve.go and announce.go (operators); active_set.go, feeder.go and stream_loss.go
//     (streams); outbox.go.
//   - Read-only reports: report_*.go.
//   - The types of a payout, and its calls in the words of a promotion: the package payouts.
//   - The rules: plugins/once/ledger/rules, pure functions without SQL that know no payouts.
//   - The statements for payouts: columns.go, and postgres*.go and sqlite*.go behind the
//     interface store. Everything else is portable SQL next to the method that uses it. The
//     tables: migrations/.
//
// Accept and NotEnqueued take a batch, Begin and Settle one payout. All that arrive during a flush
// become the next transaction. Every payout has its own result.
//
// # Non-obvious
//
//   - All times are those of the database, read after the rows. A caller gets durations (a lease,
//     a delay), never points in time, so that no two clocks are compared.
//   - Begin and Settle are fenced by the epoch: docs/decisions/0011-fencing.md. Settle may be
//     repeated with the same epoch. A Begin that is repeated after a lost connection finds its
//     own lease and returns Retry.
//   - An attempt is written when it has ended. A begin after an expired lease writes the attempt
//     of that lease as interrupted and increments the epoch, so that the late answer changes
//     nothing.
//   - A first begin and a paid send are one statement per batch in PostgreSQL, without a read:
//     docs/decisions/0021-ordinary-payouts.md. All others take the general path.
//   - On that path PostgreSQL rows are read without a lock, and updated only if their version is
//     unchanged: docs/decisions/0018-row-versions.md.
//   - A begin changes no indexed column: docs/decisions/0022-heap-only-begin.md.
//   - Begin and Accept hold the lock of their promotion in shared mode, so that a pause has a
//     definite moment: docs/decisions/0017-promotion-lock.md.
//   - No wait for a lock is unlimited. PostgreSQL ends a session that is silent inside a
//     transaction, and statements have a lock_timeout. After a lock, the promotions of a batch
//     are run one by one. Their lock_timeout is short, and shorter with more promotions. For 10 s,
//     later calls of a locked promotion are run in one transaction at a time, and hold no flusher.
//     One that has succeeded meanwhile may only have met a transaction that waited for another
//     promotion's lock, so a flusher takes it again with a wait of 20 ms. Promotions that have not
//     met a lock go first.
//   - A replay writes its dead letter and generation first. The unique key rejects a repetition.
//   - Cancel changes the state in one short transaction and then settles rows in chunks. So the
//     cancellation of a million payouts delays no other begin. A repeated Cancel, or reading the
//     entries, cancels what a crash has left.
package ledger
