// Package money is the client of the Money API, which openapi.yaml describes.
//
// One call returns one Answer, and its Class states whether the call charged. The client never
// retries, because only the ledger does. For another API implement the API interface. Page 0023 of
// docs/decisions says why it uses net/http.
//
// The client itself is package oncehttp: what proves that a byte was sent, the breaker, the throttle, tokens
// and metrics. Here is what the Money API says in its own words: the names in its JSON, its codes, and the
// form of its keys.
package money
