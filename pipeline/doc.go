// Package pipeline defines what a plugin is, and how a flow is declared, run and stopped. It contains
// nothing about a broker or a business.
//
// A plugin registers a route, which connects a source, a handler and an output, and says what happens to
// failures (ExamplePlugin is the complete program):
//
//	func (p invoices) Register(r *pipeline.Registry) error {
//		r.Route(pipeline.Route{
//			Name: "invoices",
//			From: p.sales,
//			Handle: pipeline.JSONTo(func(_ context.Context, s sale) ([]invoice, error) {
//				return []invoice{{Sale: s.ID, Total: s.Amount * 119 / 100}}, nil
//			}),
//			To:     p.issued,
//			Policy: pipeline.Policy{DeadLetter: p.dead},
//		})
//		return nil
//	}
//
// The error of the handler decides what happens to a message, and the message is acked only when whatever
// replaces it is durable:
//
//	From --> chain --> Handle --> nil                --> messages to To and Outputs, then the ack
//	                          --> Permanent          --> dead letter, then the ack
//	                          --> RetryAfter, other  --> retry topic, then the ack; without one, a nack
//
// With a retry topic RetryAfter retries no sooner than its delay; without one the message comes back when its transport
// delivers it again. Any other error is retried by the route's Policy. A
// route with HandleBatch handles several messages with one call, while each keeps its own outcome.
//
// A Runtime starts the services of all plugins (clients, servers, loops), opens the routes, and runs them
// on Watermill's Router. The chain around every handler consists of Watermill's middlewares in a named
// order, to which a binary, a plugin or a route adds its own at a Place. Package middleware has the list.
//
// # Non-obvious
//
//   - The Router publishes a handler's outputs outside its middleware, so with a failing publisher one
//     message runs tens of thousands of times per second and no middleware sees an error. Routes are
//     therefore added without outputs, and the chain publishes to Route.To and Route.Outputs itself,
//     before the ack.
//   - The outputs of a message are published one after the other and not in a transaction. When the second
//     one fails, the retry publishes to the first one again, so readers of both see a message at least once.
//   - The Router's Close cancels the contexts of messages in flight and drops their acks, so every deploy
//     would run them again. Runtime.Stop therefore drains every Subscription first, with contexts that
//     are not cancelled, and closes the Router when nothing is in flight.
//   - The Router ends when its last handler ends, and cannot run again. A keep-alive handler without
//     messages prevents that, and the set of handlers is fixed at the start. Sources that come and go,
//     such as the streams of campaigns, are therefore one route with one Subscription.
//   - The Router starts one goroutine per message, without limit, so the Subscription bounds the messages
//     in flight, by Flow.
//   - A batch passes the Router and the chain as one message, which the Runtime makes of those that the
//     Subscription delivers. At most three batches of a route are handled at once while the next one
//     grows; with Batch.PerSource it is one per source. Without load a batch is one message that waits
//     for nothing.
//   - Publishes of the chain (retry records, dead letters, outputs) have a deadline of their own, because
//     with the handler's exceeded deadline they would fail and the message would come back at once.
//   - Nothing outside the step that decides about failures fails a message that was handled, and every
//     Place is inside of it. That order ensures that a message is acked only when the record that replaces
//     it is durable.
//   - A handler that never returns keeps its goroutine, its slot and its message's context, and can only
//     be counted. After middleware.Options.MaxStuck of them the process ends with that reason.
//   - A dead letter is larger than its message, so its topic may refuse it, and it is then published with
//     less of the payload. A retry record that is refused becomes a dead letter.
//   - The headers of a retry record (attempts, due time, first failure) name a route, and count only when
//     that route retries into the topic of the record. Otherwise a copied message would spend the retries
//     of the next route. The chain removes them, the header with the last error, and the header of a
//     replay, from outputs.
//   - A panic is retried only where there is a retry topic. Without one it becomes a dead letter, because
//     a nacked message would come back at once, without end.
//   - The delay of RetryAfter is kept without a retry topic, too. The message then waits in flight before
//     its nack, until the drain or the loss of its partition at most.
//   - Stop drains all routes at once. Their sources are durable, so the order does not matter, and a
//     handler that never returns does not delay the other routes.
//   - Settings are final at Register, because they have the addresses of the embedded environment by
//     then. Offline commands such as topology register plugins too, so Register opens nothing.
package pipeline
