// Package pipeline defines what a plugin is, and how a flow is declared, run and stopped. It
// contains nothing about a broker or a business.
//
// A Plugin registers Routes (source, handler, outputs) and Services (clients, servers, loops). A
// Runtime starts the services, opens the routes and runs them on Watermill's Router, with the chain
// of package middleware around every handler. The error of a handler decides what happens next:
//
//   - nil acks the message;
//   - Permanent makes it a dead letter;
//   - RetryAfter retries it no sooner than the delay;
//   - any other error retries it by the route's Policy.
//
// The chain consists of Watermill's middlewares in a named order. A binary, a plugin or a route adds
// its own at a Place (Middleware). Package middleware has the list.
//
// A route with HandleBatch handles several messages with one call. Each keeps its own outcome.
//
// # Non-obvious
//
//   - The Router publishes a handler's outputs outside its middleware. With a failing publisher one
//     message runs tens of thousands of times per second, and no middleware sees an error. Routes
//     are therefore added without outputs, and the chain publishes Route.To itself, before the ack.
//   - The Router's Close cancels the contexts of messages in flight and drops their acks. Every
//     deploy would then run them again. Runtime.Stop drains every Subscription first, with contexts
//     that are not cancelled, and closes the Router when nothing is in flight.
//   - The Router ends when its last handler ends, and cannot run again. A keep-alive handler
//     without messages prevents that. The set of handlers is fixed at the start. Sources that come
//     and go, such as the streams of campaigns, are one route with one Subscription.
//   - The Router starts one goroutine per message, without limit. The Subscription bounds the
//     messages in flight, by Flow.
//   - A batch passes the Router and the chain as one message. The Runtime makes it of the messages
//     that the Subscription delivers. At most three batches of a route are handled at once, and the
//     next one grows meanwhile. Without load a batch is one message, and waits for nothing.
//   - Publishes of the chain (retry records, dead letters, outputs) have a deadline of their own.
//     With the handler's exceeded deadline they would fail, and the message would come back at
//     once.
//   - A message is acked only when the record that replaces it is durable. The order of the
//     middlewares ensures that: nothing outside failure routing can fail a message, and every Place
//     is inside of it.
//   - A handler that never returns keeps its goroutine, its slot and its message's context. It can
//     only be counted. After middleware.Options.MaxStuck of them the process ends with that reason.
//   - A dead letter is larger than its message, so its topic may refuse it. It is then published
//     with less of the payload. A retry record that is refused becomes a dead letter.
//   - The headers of a retry record (attempts, due time, first failure) name a route. They count
//     only when it retries into the topic of the record. Otherwise a copied message would spend the
//     retries of the next route. The chain removes them, the header with the last error, and the
//     header of a replay, from outputs.
//   - A panic is retried only where there is a retry topic. Nacked, the message would come back at
//     once, without end. Without a retry topic it becomes a dead letter.
//   - The delay of RetryAfter is also kept on a route without a retry topic. The message then waits
//     in flight before its nack, until the drain or the loss of its partition at most.
//   - Stop drains all routes at once. Their sources are durable, so the order does not matter, and
//     a handler that never returns does not delay the other routes.
//   - Settings are final at Register: they have the addresses of the embedded environment. Offline
//     commands such as topology register plugins too, so Register opens nothing.
package pipeline
