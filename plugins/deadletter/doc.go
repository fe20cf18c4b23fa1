// Package deadletter brings what can never succeed to dead-letter topics, in one format, where a person
// finds it: straight from a route's chain (Plugin.Sink), or from an outbox that a ledger writes in the
// transaction that gives a message up (Plugin.Relay).
package deadletter
