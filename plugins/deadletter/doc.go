// Package deadletter brings messages that can never succeed to dead-letter topics. With a store it also puts
// them into a table, where a person finds, replays or discards them. In a route it is one line (Example is the
// complete program):
//
//	Policy: pipeline.Policy{DeadLetter: o.dead.Sink("orders-dead")},
//
//	route without a ledger --- Sink, StreamSink --------+
//	                                                    +--> store, if any --> topic or stream
//	ledger --- outbox, in the same transaction - Relay -+       ^
//	                                                            +-- list, show, replay, discard
//
// A ledger writes its dead letters into an outbox in the transaction of the failure, and Plugin.Relay empties
// it. Both ways use one publish function, which writes the store before the topic, so that a reader of the topic
// always finds the dead letter in the store.
//
// Package store is the table, and package cli has the commands on it. A plugin whose ledger writes dead letters
// registers how they are replayed with a ReplayedBy.
package deadletter
