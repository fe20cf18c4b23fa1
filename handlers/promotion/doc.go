// Package promotion pays campaign promotions: points and vouchers to up to millions of targets, through a slow
// Money API that must never be asked twice for the same thing.
//
// Records come from Kafka, are booked in the ledger (package ledger), spread over Redis streams, and paid
// by one processor for every type; what sets types apart is a strategy, one small file each. Only the
// ledger decides: Kafka records, stream entries and retry records are hints that may be lost, repeated and
// rebuilt, and the feeder rebuilds them.
package promotion
