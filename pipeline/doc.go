// Package pipeline is the contract of Millrace: what a plugin is, how a flow is declared, run and
// stopped. It knows no broker and no business.
//
// A Plugin registers Routes (where messages come from, what handles them, where the outcome goes) and
// Services (clients, servers, loops). A Runtime starts the services, opens the routes and runs them
// on Watermill's Router with the chain of package middleware around every handler. A handler returns
// errors, and the error says what happens next: nil acks, Permanent dead-letters now, RetryAfter
// retries no sooner than its delay, anything else retries by the route's Policy. Package middleware says why the chain has
// none of Watermill's own middlewares.
//
// # Non-obvious
//
//   - The Router publishes a handler's outputs outside its middleware: with a failing publisher one
//     message runs tens of thousands of times a second and no middleware sees an error. Routes are therefore
//     added without outputs, and the chain publishes Route.To itself, before the ack.
//   - The Router's Close cancels the contexts of messages in hand and drops their acks, so every deploy
//     would run them again. Runtime.Stop drains every Subscription first, with contexts alive, and
//     closes the Router when nothing is in hand.
//   - The Router ends when its last handler ends and can't run again. A keep-alive handler without
//     messages prevents it; the set of handlers is fixed at start. What comes and goes (the streams of
//     a million campaigns) is one route whose Subscription carries all of them.
//   - The Router starts a goroutine a message, without limit. How much is in hand is the Subscription's
//     to bound, by Flow and slots.
//   - Publishes of the chain (retry records, dead letters, outputs) run under context.WithoutCancel with a
//     deadline of their own. A publish that inherits a handler's exceeded deadline fails, nacks, and
//     comes back at once.
//   - A message is acked only when the record that carries it on is durable. The order of the middlewares
//     keeps that: nothing outside failure routing can fail a message.
//   - A handler that never returns keeps its goroutine, its slot and its message's context. It can't be
//     killed, only counted; after some of them (middleware.Options.MaxStuck) the process ends with that reason.
//   - A dead letter is larger than its message, so its topic may refuse it. It is published again with less of the payload, and a
//     retry record that is refused becomes a dead letter: a publish that can never succeed is not repeated.
//   - The headers of a retry record (attempts, due time, first failure) count only on a record that names a route which retries
//     into the topic it came from. A handler that returns a copy of its message would otherwise spend the next route's retries, and so
//     would any other client. They are removed from outputs, and so is the header of a replay.
//   - A panic is retried only where there is a retry topic. Nacked, it would come back at once, indefinitely: it is a
//     dead letter instead, and lost only on a route that says so (Drop).
//   - A delay that an error asks for (RetryAfter) is kept on a route without a retry topic, too: the message waits in
//     hand before its nack, until the drain or the loss of its partition at most.
//   - Stop drains all routes at once: they read durable sources, so their order does not matter. One handler that never
//     returns then costs the other routes and the services nothing.
//   - Settings are read at Start, not at Register: the embedded home rewrites addresses in between.
//
// # Where the shape differs from the first design
//
//   - Route has a field Activity, which tells a source what is in hand; the elastic streams judge idleness by it.
//   - Flow has a field Gate: while it answers false a transport reads nothing new. An open circuit breaker
//     stops reading instead of burning attempts.
//   - Retry has a hook Payload, because the retry record of a payout carries its count in the payload.
//   - Flow has a field LongestHold, which the Runtime fills from the Policy: the transport stops keeping a message
//     alive then, and a Source never sees the Policy.
//   - Policy has a delivery limit (MaxDeliveries), and Origin says what a transport could not decode (Malformed): the
//     chain dead-letters both without asking the handler, which would otherwise have to look for itself.
//   - Plugins are built before settings are read, and settings are decoded into them (Configurable), so that
//     a plugin's commands exist without a settings file.
package pipeline
