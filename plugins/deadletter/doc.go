// Package deadletter brings messages that can never succeed to dead-letter topics. With a store, it
// also puts them into a table where a person finds, replays or discards them.
//
// A dead letter enters through Plugin.Sink or Plugin.StreamSink, for a route without a ledger, or
// through Plugin.Relay.
// The relay empties an outbox that a ledger writes in the transaction of the failure. Both use one
// publish function: the store first, then the topic.
//
// Package store is the table. Package cli has the commands on it. A plugin whose ledger writes dead
// letters registers how they are replayed with a ReplayedBy.
package deadletter
