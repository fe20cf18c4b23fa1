package oncehttp

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
)

// Mapping says what the answers of one API mean. A path such as {"error", "code"} names a member of a JSON
// object, and a number in it an element of an array. Name and one of Receipt and Key are required.
type Mapping struct {
	// Name is the name of the API in metrics, logs and traces: lower-case letters, digits, - and _.
	Name string
	// Header is the header of the idempotency key. Empty: Idempotency-Key.
	Header string
	// Method is that of a request. Empty: POST. PUT and PATCH are the others.
	Method string
	// Headers are further headers of every call. Their values are hidden like a token, and read again like one.
	Headers map[string]setting.Secret
	// MaxKey is the length of the longest idempotency key in bytes, by which a longer one is Rejected. 0: 255.
	MaxKey int

	// Receipt is the path of the receipt in a 200 or 201. An answer without one is Unclear. Empty: the API has
	// no receipts, and Key proves that an answer is its own.
	Receipt []string
	// NumericReceipt also accepts a JSON number as the receipt.
	NumericReceipt bool
	// MaxReceipt is the length of the longest receipt in bytes. 0: once.MaxReceipt, which is also the most.
	MaxReceipt int
	// Key is the path of the idempotency key in a 200 or 201. If the answer has one, it must be that of the
	// request. Empty: the API does not repeat it.
	Key []string

	// Code is the path of the API's own code in an error. Empty: code. An error without a code is
	// Unrecognized.
	Code []string
	// Message is the path of the words for people in an error. Empty: message.
	Message []string
	// CodeForm is the form of the API's own codes. Nil: up to 64 letters, digits, dots, - and _, of which the
	// first is a letter.
	CodeForm *regexp.Regexp
	// Rejected are the codes of a 403, 404 or 409 that concern only the effect of the request. With any other
	// code a 403 and a 404 concern the client, and a 409 says that a request with the key is in flight.
	Rejected map[int][]string
	// Done are the codes of a 4xx, other than a 401, 408, 425 and 429, that state that the effect was done
	// before.
	Done []string
	// NotFound are the codes with which a 404 answers a lookup of an effect that is not known. Without them
	// no lookup is NotDone, because a 404 may also be about the address.
	NotFound []string

	// Statuses are the answers to a request whose status is taken at its word: Done, Rejected, Retry or
	// Unclear. With a 2xx that is Done, Receipt and Key may be empty.
	Statuses Statuses
	// LookupStatuses are the same for the answers to a lookup: Done, NotDone or Unclear.
	LookupStatuses Statuses
}

const (
	maxBodyBytes = 64 << 10 // of an answer; more is unreadable
	maxKeyLen    = 255      // of an idempotency key, by default
	maxTextLen   = 240      // of Answer.Text
	maxCodeLen   = 128      // of Answer.Code
)

var (
	nameForm   = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
	headerForm = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,100}$`)
	codeForm   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)
)

// Validate reports all mistakes at once, as setting.FieldError values.
func (m *Mapping) Validate() error {
	var p setting.Problems
	p.Check(nameForm.MatchString(m.Name), "Name", "must begin with a lower-case letter and have up to 32 letters, digits, - and _, got %q", m.Name)
	p.Check(m.Header == "" || headerForm.MatchString(m.Header), "Header", "must be the name of a header, got %q", m.Header)
	p.Check(slices.Contains([]string{"", http.MethodPost, http.MethodPut, http.MethodPatch}, m.Method), "Method", "must be POST, PUT or PATCH, got %q", m.Method)
	for _, taken := range []string{"Accept", "Authorization", "Content-Type", "Content-Length", "Host", "Traceparent"} {
		p.Check(!strings.EqualFold(m.Header, taken), "Header", "must not be %s, which has another value", taken)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		p.Check(headerForm.MatchString(name), "Headers", "must have names of headers, got %q", name)
		for _, taken := range []string{"Content-Length", "Content-Type", "Host", "Traceparent", "Transfer-Encoding", m.completed().Header} {
			p.Check(!strings.EqualFold(name, taken), "Headers", "must not have %s, which has another value", taken)
		}
		p.Check(checkHeader(m.Headers[name].Reveal()) == nil, "Headers", "%s must have one line", name)
	}
	p.Check(m.MaxKey >= 0, "MaxKey", "must be >= 0, got %d", m.MaxKey)
	p.Check(m.MaxReceipt >= 0 && m.MaxReceipt <= once.MaxReceipt, "MaxReceipt", "must be 0 to %d, got %d", once.MaxReceipt, m.MaxReceipt)
	p.Check(len(m.Receipt) > 0 || len(m.Key) > 0 || m.Statuses.done(), "Receipt", "must be set, or Key, or a 2xx of Statuses must be done: otherwise nothing proves that an effect was done")
	for path, statuses := range map[string]Statuses{"Statuses": m.Statuses, "LookupStatuses": m.LookupStatuses} {
		for _, name := range slices.Sorted(maps.Keys(statuses)) {
			err := CheckStatus(name, statuses[name], path == "LookupStatuses")
			p.Check(err == nil, path, "%v", err)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(m.Rejected)) {
		p.Check(status == http.StatusForbidden || status == http.StatusNotFound || status == http.StatusConflict, "Rejected",
			"must have the statuses 403, 404 and 409, got %d: every other 4xx with a code is about the effect anyway", status)
	}
	for _, code := range m.NotFound {
		p.Check(!slices.Contains(m.Rejected[http.StatusNotFound], code), "NotFound", "must not have %q, which Rejected has for a 404", code)
	}
	own := m.completed()
	for name, codes := range map[string][]string{"Rejected": slices.Concat(slices.Collect(maps.Values(m.Rejected))...), "Done": m.Done, "NotFound": m.NotFound} {
		for _, code := range codes {
			p.Check(own.isCode(code), name, "%q has not the form of a code, %s", code, own.CodeForm)
		}
	}
	return p.Err()
}

func (m *Mapping) statuses(lookup bool) Statuses {
	if lookup {
		return m.LookupStatuses
	}
	return m.Statuses
}

// completed returns the mapping with its defaults.
func (m Mapping) completed() Mapping {
	if m.Method == "" {
		m.Method = http.MethodPost
	}
	if m.Header == "" {
		m.Header = "Idempotency-Key"
	}
	m.Header = http.CanonicalHeaderKey(m.Header)
	if m.MaxKey == 0 {
		m.MaxKey = maxKeyLen
	}
	if m.MaxReceipt == 0 {
		m.MaxReceipt = once.MaxReceipt
	}
	if m.Code == nil {
		m.Code = []string{"code"}
	}
	if m.Message == nil {
		m.Message = []string{"message"}
	}
	if m.CodeForm == nil {
		m.CodeForm = codeForm
	}
	return m
}

func (m *Mapping) isCode(text string) bool {
	return text != "" && len(text) <= maxCodeLen && m.CodeForm.MatchString(text)
}

// CheckKey returns why an idempotency key can't be sent by a client whose Mapping has no MaxKey.
func CheckKey(key string) error {
	m := Mapping{}.completed()
	return m.checkKey(key)
}

// checkKey returns why an idempotency key can't be sent in a header and as one element of a path.
func (m *Mapping) checkKey(key string) error {
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' {
			return errors.New("the idempotency key can't be sent: it must be printable ASCII without spaces")
		}
	}
	switch {
	case key == "", len(key) > m.MaxKey:
		return fmt.Errorf("the idempotency key can't be sent: it must have 1 to %d characters, got %d", m.MaxKey, len(key))
	case key == ".", key == "..":
		return errors.New("the idempotency key can't be sent: it must be more than dots")
	}
	return nil
}
