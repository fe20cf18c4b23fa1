package simulator

import (
	"encoding/json"
	"net/http"
	"net/url"
)

// API is what the far side offers, and how it names things. Everything else is the same for all of them.
type API struct {
	// Operation returns the idempotency key of a request that has something executed, and how its body is checked.
	// A nil check says that the request is none of them. Required.
	Operation func(r *http.Request) (key string, check Check)
	// Lookup returns the key that a request asks about; ok is false for a request that is no lookup. Nil: there is
	// no lookup.
	Lookup func(r *http.Request) (key string, ok bool)
	// ForgetsKeys executes every request, also one with a key that was executed before.
	ForgetsKeys bool

	// ValidKey reports whether a key has the form that KeyForm describes in a sentence. Nil: 1 to 255 bytes.
	ValidKey func(key string) bool
	KeyForm  string

	// Done is the JSON of the good answer to a request or a lookup. Nil: {"id": receipt}.
	Done func(receipt, key string) []byte
	// Missing answers a lookup of a key that was not executed, with 404, and Rejected a key that is refused for
	// good, with 422. Absent and Blocked are the answers 404 and 403 to a poisoned key. Each has a default.
	Missing, Rejected, Absent, Blocked Refusal

	// Sums says that orders have sums, which the book for `once reconcile` then has, too.
	Sums bool
	// Filter returns which subjects the parameters of GET /_sim/journal select; nil: all. A nil Filter knows none.
	Filter func(url.Values) (func(subject string) bool, error)
}

// Check checks the body of a request and says what it asks for. Its error is the answer 400.
type Check func(body []byte) (Order, error)

// Order is what a body asks for.
type Order struct {
	// Subject is what it is for, whatever its key. Two executions for one subject are counted like two with one
	// key. Empty: the key.
	Subject string
	Sum     int64 // what it amounts to
}

// Refusal is the JSON of an error.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (a API) withDefaults() API {
	if a.Lookup == nil {
		a.Lookup = func(*http.Request) (string, bool) { return "", false }
	}
	if a.ValidKey == nil {
		a.ValidKey, a.KeyForm = func(key string) bool { return key != "" && len(key) <= maxKey }, "the idempotency key must be 1 to 255 bytes"
	}
	if a.Done == nil {
		a.Done = doneWith("id")
	}
	if a.Filter == nil {
		a.Filter = func(url.Values) (func(string) bool, error) { return nil, nil }
	}
	for _, d := range []struct {
		to      *Refusal
		refusal Refusal
	}{
		{&a.Missing, Refusal{"not_found", "nothing was executed with this key"}},
		{&a.Rejected, Refusal{"rejected", "this key is refused for good"}},
		{&a.Absent, Refusal{"absent", "what this key is for does not exist"}},
		{&a.Blocked, Refusal{"blocked", "what this key is for is blocked"}},
	} {
		if *d.to == (Refusal{}) {
			*d.to = d.refusal
		}
	}
	return a
}

const maxKey = 255 // bytes, as oncehttp sends at most

// doneWith returns an API.Done whose receipt is in the member of that name.
func doneWith(member string) func(receipt, key string) []byte {
	return func(receipt, _ string) []byte {
		b, _ := json.Marshal(map[string]string{member: receipt}) // texts always can be
		return b
	}
}
