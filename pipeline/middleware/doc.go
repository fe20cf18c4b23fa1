// Package middleware holds the chain that every message passes. Each file is a step of it, and
// route.go has their order. A message passes begin, handle, settle and end. On a route with
// HandleBatch (batch.go) only handle is common to the messages of a batch.
//
// # Why none of Watermill's own middlewares is in the chain
//
// The chain runs on Watermill's Router and its middlewares have Watermill's type, but each of
// Watermill's own lacks something that a durable flow needs (v1.5.3):
//
//   - Timeout leaves its expired context on the message. A poison queue around it then publishes
//     with that context and fails.
//   - PoisonQueue publishes the message with four more metadata keys: no class, no attempts, no
//     position of the record. Around Retry it sees only the last error.
//   - Retry repeats the handler in the process: the message keeps its slot while it waits, and a
//     restart loses the count.
//   - CorrelationID gives outputs an empty id when the message has none.
//   - Recoverer returns an error like any other. Here a panic has a class of its own, because it
//     must not be nacked at once.
//   - CircuitBreaker fails each message while it is open, which spends attempts. Flow.Gate stops
//     reading instead.
//   - Deduplicator remembers messages of one process only. A ledger decides here.
//   - The Router publishes outputs outside of all its middlewares, so none of them can see a failed
//     publish.
//
// Options.Around takes any middleware of Watermill's type, for example Throttle, as part of the
// handler.
package middleware
