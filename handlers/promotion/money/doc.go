// Package money is the client of the Money API, which openapi.yaml describes.
//
// One call returns one Answer, and its Class states whether the call charged. The client never
// retries, because only the ledger does. For another API implement the API interface. Page 0023 of
// docs/decisions says why it uses net/http.
//
// # Non-obvious
//
// The client counts bytes. A call may have charged if a byte of it was sent. httptrace.WroteRequest
// does not show this: net/http calls it before it flushes its buffer, and also with an error after
// a part was sent. Therefore a call is NotSent only if no byte was written to any of its
// connections. Only HTTP/1.1 is used, because calls share a connection of HTTP/2.
//
// The Transport replays. A reused connection may close before the first byte of an answer. Then
// http.Transport sends a request with an Idempotency-Key again, also a POST. The API must honor the
// key, so the replay is safe, and it saves an attempt. But the second connection may be refused
// after the first one has charged. Therefore "sent" covers all connections of a call.
//
// A caller takes a slot just before the call. Slot limits the number of concurrent calls; Charge
// and Lookup do not. The breaker and the throttle are checked by the call itself, because they may
// change while a slot is held.
//
// Nothing is written after the deadline, because the ledger allows a call only during its lease. A
// process that was frozen may continue between the check and the write, before any timer fires.
// Therefore the connection checks the monotonic clock and the wall clock before each write.
//
// A proxy's answer proves nothing, because a proxy may refuse a request that it has passed on.
package money
