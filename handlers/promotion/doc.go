// Package promotion pays campaign promotions: points and vouchers to up to millions of targets.
// The Money API is slow, and it must never charge the same payout twice.
//
// Package payout stores each Kafka record in the ledger, adds it to a Redis stream, and pays it.
// Package promotiontype has the types, one file each. Only the ledger decides: records, stream
// entries and retry records may be lost and repeated. The feeder enqueues lost payouts again.
//
// This package builds the plugin: its settings (config.go), its services, and its routes
// (plugin.go).
package promotion
