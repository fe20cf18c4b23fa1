// Package deadletter brings what can never succeed to dead-letter topics, in one format, and into a table where
// a person finds it and works with it: straight from a route's chain (Plugin.Sink), or from an outbox that a
// ledger writes in the transaction that gives a message up (Plugin.Relay). Package letters is the table; the
// commands `dead list`, `show`, `replay` and `discard` work on it, and a plugin whose ledger has letters says how
// they are replayed (Plugin.ReplayWith).
package deadletter
