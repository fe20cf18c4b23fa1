// Package money is the client of the Money API, the one that pays points and vouchers, and the
// OpenAPI file that is the contract with it (OpenAPI).
//
// One call gives one Answer, and the Answer's Class says what is known about the money. The client
// never retries: the ledger is the only owner of retries. A team with another API implements the
// API interface and keeps the rest of the plugin.
//
// # Non-obvious
//
// Sent or not sent. Whether anything may have been charged hangs on whether a request left this
// process. httptrace.WroteRequest is close to that, but net/http calls it before it flushes its
// buffer, and with an error after a part was sent. So the client counts bytes where they leave: a
// call is NotSent only if not one byte was written to any connection that it was given. Only
// HTTP/1.1 is spoken, because with HTTP/2 a connection is shared and the count would mean nothing.
//
// The Transport replays. When a reused connection dies before the first byte of an answer,
// http.Transport sends a request with an Idempotency-Key again by itself, also a POST
// (Request.isReplayable). That is right here, because the contract makes the API honour the key,
// and it spares an attempt whenever a server closes idle connections. But the second try may end
// with "connection refused" after the first one has charged; therefore "sent" is remembered over
// all connections of a call, and such a call is Ambiguous. Replays are counted in
// millrace_money_replays_total, stay within the call's deadline, and happen only for connections
// that were reused. An API that doesn't honour the key can't be used with this package, replays
// or not.
//
// A slot comes before the begin. Charge and Lookup do not limit how many calls run at once; Slot does, and its caller takes
// one before it begins a payout. A call that waited for its slot after the begin would wait while its lease runs. The breaker
// and the gate are asked by the call itself, because they may close while a slot is held: the call is then NotSent at once.
//
// Nothing is written after the deadline. The ledger lets a call start only while its lease lasts.
// A process that was frozen (SIGSTOP, a suspended machine) can wake up between that check and the
// write, before any timer has fired; so the connection itself compares two clocks with the call's
// deadline before each write. The monotonic clock stands still while a machine is suspended, and the
// wall clock may be set back: the deadline has passed when either says so.
//
// Redirects are never followed: the API is where the configuration says, and a POST that is sent
// elsewhere is a second request. No proxy is taken from the environment.
//
// One payout never stops the others. The breaker counts keys that fail, not calls, and the gate closes only
// when several keys are throttled. A key counts once within a window, and in a later window only when no call
// there is answered well. What is general trouble and what is one payout's is in Answer.General.
//
// A proxy's answer proves nothing. Only a code of the contract's form, or a transactionKey, is the
// API's own word. A proxy may refuse a request that it has passed on.
package money
