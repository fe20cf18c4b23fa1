// Package middleware has the chain that every message passes: an ordered list of steps of Watermill's
// middleware type, which call each other from the outside to the handler:
//
//	chain := middleware.New(registry, middleware.Options{})
//	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
//
// Steps returns the list of a route, and the command topology prints it. The chain's own steps are, the
// outermost first:
//
//   - activity: tells the route's Activity when a message begins and ends;
//   - metrics: counts messages in flight and measures the time to the ack or nack;
//   - trace: the span of the message, which covers its retry record and dead letter too;
//   - owner: nacks a message that another instance has received meanwhile;
//   - failure: decides about errors and panics by the route's Policy;
//   - refuse: fails a message that was delivered too often, or that its transport can't decode;
//   - hold: reports a message whose steps inside of it take longer than the longest hold;
//   - publish: sends the outputs to Route.To and Route.Outputs, before the ack;
//   - correlation: gives the outputs the correlation id of their message;
//   - recover: makes an error of a panic;
//   - timeout: gives the handler's context the time limit.
//
// A binary, a plugin or a route adds steps of its own as a pipeline.Middleware, at one of three
// places: received and attempt are between hold and publish, and handler is after timeout. All of
// them are inside of failure, so whatever fails there is decided by the Policy, and no step can lose
// a message that was acked. They are also inside of hold, so one that hangs is reported, while only
// the last has the time limit.
//
// On a route with HandleBatch the messages of an envelope pass the steps up to the place received one
// by one. Those from publish on are common to the batch (batch.go). The step hold has one limit for
// the place received and the handler together, and another one for the publishing.
//
// # Why the chain has steps of its own
//
// A test tries each of Watermill's middlewares at each place, with the result in docs/middleware.md.
// Some of Watermill's middlewares (v1.5.3) have the same purpose as a step, but lack something that a
// durable flow needs:
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
//   - Deduplicator remembers messages of one process only, and before they are handled. A ledger
//     decides here.
//
// # Why outputs are published inside the chain
//
// The Router publishes outputs outside of all its middlewares, so none of them can see a failed
// publish, and the message comes back at once without end. The step publish is inside of failure, so
// a failed publish is retried by the Policy like an error of the handler.
package middleware
