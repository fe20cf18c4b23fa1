// Package ledger is the one truth about money: which payout was accepted, who may call the Money API
// for it right now, and how it ended. Kafka, streams and retry records are hints that may be lost,
// repeated and rebuilt; only the ledger decides.
//
// The rules live in one file of pure functions (transition.go); PostgreSQL and SQLite only execute
// them. The life of a payout:
//
//	Accept ── PENDING ── Begin ── SENDING ── Settle ── SUCCESS | FAILED | UNKNOWN
//	                       ▲                   │
//	                       └─ ERROR, AMBIGUOUS ┘        Cancel: PENDING, ERROR ── CANCELLED
//
//	A person: Replay: FAILED ── PENDING, UNKNOWN ── AMBIGUOUS        Resolve: UNKNOWN ── SUCCESS | FAILED
//
// Accept, Begin, Settle and NotEnqueued take one payout each and are called from as many goroutines
// as there are messages in hand. They are coalesced: whatever gathers while the last flush runs becomes
// one transaction of a few multi-row statements, and every caller gets its own result.
//
// # Non-obvious
//
//   - All times are the database's, read after the rows. A caller gets durations (a lease,
//     a delay), never points in time, so that no two clocks are compared.
//   - Begin and Settle are fenced by the epoch. Settle may be repeated with the same epoch; a Begin that
//     is repeated after a lost connection meets its own live lease and is told to retry.
//   - An attempt is written when it is over. A begin that takes over an expired lease writes the line of
//     the attempt it takes over, as interrupted, and bumps the epoch, so that the late answer changes nothing.
//   - A row knows where its hint is (none, stream, retry), and has a version that every change counts up, also
//     a change from none to none. MarkFed compares it: between the enqueue and MarkFed a reader may already have
//     used the entry up, and a paused row goes back to none without a new epoch; without the version that hint
//     would be lost.
//   - PostgreSQL's rows are read without a lock and updated only if they still have the version that was read;
//     otherwise the transaction is undone and run again with locks. So an update costs no second write for the lock, and
//     every decision is as if it had been made at one moment.
//   - While a row is SENDING its hint is retry, due at the lease's end. So the feeder finds a dead worker's
//     payouts with the same index range as every other overdue retry.
//   - FirstSentAt is when the oldest request that may have charged was begun. It is cleared when an attempt
//     is known not to have charged.
//   - KeyFirstUsedAt is when the idempotency key may have reached the API first. An API may count the age of a key from there,
//     also when it refused that request. So only a call of which no byte left the process clears it. When the key is older than
//     idempotency_ttl, a lookup comes before each send that reaches the API, and what may have been charged is not sent at
//     all. The lookup is not counted when the API refused to work for now, or refused our credential.
//   - A released call spends no attempt: the API refused to work for now, our credential was refused, or a proxy answered.
//     Such calls would be repeated without end for a payout that alone is answered so. They are counted (Released) while other
//     payouts are being answered. At max_released a payout is FAILED when it was certainly not charged, and looked up otherwise.
//   - UNKNOWN comes only after lookups: when no send is left and a charge is possible, the payout is looked up until the lookups
//     are used up too. A lookup that a proxy refuses, or that gets no answer, is released.
//   - Begins and accepts read a promotion's state behind its gate: an advisory lock that they hold in share mode until
//     they commit, and that a change of the state takes exclusively. Its queue is fair. A share lock of the row would keep a
//     writer out indefinitely: it is granted past a waiting writer, and many overlapping begins never leave a gap. The gate's
//     key includes the schema, and a trigger takes it for writers that don't. A pause also takes the gate of the version before
//     the trigger, for a rolling upgrade. Transactions are READ COMMITTED, so that a begin reads what was committed while it waited.
//   - A lock is never waited for indefinitely: PostgreSQL ends a session that is silent inside a transaction, hot
//     statements have a lock_timeout, and a pause waits for its gate in short steps, because every later begin queues behind
//     it. A batch that met a lock is run in halves, so that the other payouts don't share the delay.
//   - Settled is final for everything but a person. Replay and Resolve are transitions of the same function, each with a
//     new epoch, in one transaction with the summary that counts one less, and the audit line. A replay's letter and
//     generation are written first: whoever can't is late.
//   - Only Resolve clears maybe_charged. Nothing a person does clears key_first_used_at: the key's age goes on counting.
//   - Cancel draws its line in time with one short transaction on the promotion's row and then settles
//     rows in chunks, so that cancelling a million payouts holds nobody else's begin up. What a crash
//     leaves behind is cancelled by the feeder's hints, or by calling Cancel again.
package ledger
