// Package oncehttp calls the HTTP API of a far side, once per attempt, and classifies the answer. A plugin
// makes a Client with a Mapping, which says what the answers of its API mean, and calls it from its kind:
//
//	p.api = oncehttp.New(&p.config.API, oncehttp.Mapping{Name: "billing", Receipt: []string{"id"}})
//
//	func (p *Plugin) create(ctx context.Context, a once.Attempt[Invoice]) once.Answer {
//		return oncehttp.Post(ctx, p.api, "/v1/invoices", a)
//	}
//
// Post and Find never retry, because only the caller knows whether its lease lasts.
//
// # Non-obvious
//
// The client counts bytes. A call may have done its effect if a byte of it was sent. httptrace.WroteRequest
// does not show this: net/http calls it before it flushes its buffer, and also with an error after
// a part was sent. Therefore a call is NotSent only if no byte was written to any of its
// connections. Only HTTP/1.1 is used, because calls share a connection of HTTP/2.
//
// The Transport replays. A reused connection may close before the first byte of an answer. Then
// http.Transport sends a request with an idempotency key again, also a POST. That saves an attempt, but only a
// far side that honors the key executes it once. Therefore only an attempt with once.ByKey can be replayed; all
// others lack the function that http.Transport needs to read the body again. After a replay "sent" covers all
// connections of a call, because the second connection may be refused after the first one has done the effect.
//
// A caller takes a slot just before the call. Slot limits the number of concurrent calls; Post and Find do
// not. The breaker and the throttle are checked by the call itself, because they may change while a slot is
// held.
//
// Nothing is written after the deadline, because a call is allowed only during its lease. A
// process that was frozen may continue between the check and the write, before any timer fires.
// Therefore the connection checks the monotonic clock and the wall clock before each write.
//
// A proxy's answer proves nothing, because a proxy may refuse a request that it has passed on. Only the far
// side's own words, which the Mapping finds in a JSON body, prove that an effect was done or was not.
package oncehttp
