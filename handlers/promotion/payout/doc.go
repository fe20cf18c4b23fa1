// Package payout is the path of one payout: from its Kafka record to its settlement in the ledger.
//
// Accept stores a record in the ledger and hands it to the Publisher, which adds it to the Redis
// stream of its promotion. Pay takes a stream entry or a retry record: it begins the payout in the
// ledger, calls the Money API and settles the payout by the answer. Only the ledger decides.
// Records, entries and retry records may be lost and repeated.
//
// handlers.go adapts both to Watermill messages. DeadLetters and Results publish what the ledger
// has put into its outbox, and Replays replays dead letters.
package payout
