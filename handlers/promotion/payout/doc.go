// Package payout is the path of one payout: from its Kafka record to its settlement in the ledger.
//
// Accept stores a record in the ledger. Its message goes to the Publisher, which adds it to the
// Redis stream of the promotion. Pay begins the payout of a stream entry or retry record in the
// ledger. It then calls the Money API and settles the payout by the answer. Only the ledger
// decides: records, entries and retry records may be lost and repeated.
//
// DeadLetters and Results publish what the ledger has put into its outbox, and Replays replays dead
// letters.
package payout
