package oncehttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
)

type reply struct {
	status  int
	header  http.Header
	body    []byte
	readErr error // nil if body is complete
}

// request is what one call sends.
type request struct {
	lookup bool
	key    string
	body   []byte // not of a lookup
	replay bool   // the transport may send it a second time by itself
	secret string // must not be shown, also when the far side repeats it; may be empty
	// headers are those of the credential, which must not be shown either.
	headers map[string]string
}

// classify turns a reply into an Answer and its meaning for the far side's health. It is a pure function
// of its arguments.
//
// Only the far side's own words prove that an effect was done, or was not: a receipt or the key in a 200
// or 201, or a code. Any other answer may come from a proxy that passed the request on.
//
// The exception are the statuses of Mapping.Statuses and LookupStatuses, which are taken at their word.
func classify(m *Mapping, req *request, r *reply, now time.Time, cfg *Config) (once.Answer, verdict) {
	stated, isStated := m.statuses(req.lookup).of(r.status)
	if r.status >= 200 && r.status < 300 && !isStated {
		return classifyDone(m, req, r)
	}
	code, message := "", ""
	if r.readErr == nil {
		if e, err := parse(r.body, field{path: m.Code}, field{path: m.Message}); err == nil {
			code, message = e[0], e[1]
		}
	}
	a := once.Answer{Status: r.status, Text: clean(req.redact(errorText(r, code, message)), maxTextLen)}
	if !m.isCode(code) {
		code = ""
	}
	a.Code = clean(req.redact(code), maxCodeLen)
	wait, given := retryAfter(r.header, now, cfg.MaxRetryAfter)
	if !given && r.status == http.StatusTooManyRequests {
		wait, given = clamp(cfg.DefaultRetryAfter, cfg.MaxRetryAfter), true
	}
	if isStated {
		a.Class = stated
		if stated == once.Retry {
			a.RetryAfter = wait
		}
		return classifyStated(m, r, req, a, given)
	}
	var v verdict
	a.Class, v = classifyStatus(m, req, r.status, code, given)
	if code == "" {
		a.Class = once.Unrecognized
	}
	switch a.Class {
	case once.Throttled, once.Retry, once.Unrecognized:
		a.RetryAfter = wait
	case once.Done:
		return classifyDoneBefore(m, req, r, a)
	}
	return a, v
}

// classifyStatus classifies any answer but a 2xx. Without a code only the verdict is valid. given
// states whether there is a Retry-After.
func classifyStatus(m *Mapping, req *request, status int, code string, given bool) (once.Class, verdict) {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && given:
		return once.Throttled, throttling
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return once.Retry, failing
	case status < 300, status >= 500:
		return once.Unclear, failing
	case status < 400:
		return once.Unclear, misconfigured // after a POST a redirect may mean "done"
	case status == http.StatusConflict && code == "":
		return once.Unclear, neutral
	case code == "", status == http.StatusUnauthorized:
		return once.Misconfigured, misconfigured
	case slices.Contains(m.Done, code):
		return once.Done, healthy
	case slices.Contains(m.Rejected[status], code):
		return once.Rejected, healthy
	case status == http.StatusConflict:
		return once.Unclear, healthy
	case req.lookup && status == http.StatusNotFound && slices.Contains(m.NotFound, code):
		return once.NotDone, healthy
	case status == http.StatusForbidden || status == http.StatusNotFound:
		return once.Misconfigured, misconfigured
	}
	return once.Rejected, healthy
}

// classifyDone classifies a 2xx. It is Done if it is a 200 or 201 that can be read and belongs
// to the request. A 202 means that the effect is only planned.
func classifyDone(m *Mapping, req *request, r *reply) (once.Answer, verdict) {
	a := once.Answer{Class: once.Unclear, Status: r.status}
	receipt, err := readReceipt(m, req, r)
	switch {
	case err != nil:
		a.Err = err
	case r.status != http.StatusOK && r.status != http.StatusCreated:
		a.Err = errors.New("only 200 and 201 mean that it was done")
	default:
		a.Class, a.Receipt = once.Done, receipt
		return a, healthy
	}
	a.Text = clean(req.redact(fmt.Sprintf("%d, but %s", r.status, a.Err)), maxTextLen)
	return a, failing
}

// classifyDoneBefore classifies an error with a code that states that the effect was done before. Its receipt
// may be missing, but not be another effect's.
func classifyDoneBefore(m *Mapping, req *request, r *reply, a once.Answer) (once.Answer, verdict) {
	receipt, belongs, err := readOwner(m, r)
	if err == nil && belongs != "" && belongs != req.key {
		a.Class, a.Err = once.Unclear, errOtherKey
		return a, healthy
	}
	if err == nil && len(receipt) <= m.MaxReceipt {
		a.Receipt = receipt
	}
	return a, healthy
}

var errOtherKey = errors.New("the answer belongs to another idempotency key")

// readReceipt returns the receipt of a 2xx, or why the answer proves nothing.
func readReceipt(m *Mapping, req *request, r *reply) (string, error) {
	receipt, belongs, err := readOwner(m, r)
	switch {
	case err != nil:
		return "", fmt.Errorf("read answer: %w", err)
	case len(m.Receipt) > 0 && (receipt == "" || len(receipt) > m.MaxReceipt):
		return "", fmt.Errorf("%s must have 1 to %d characters, got %d", strings.Join(m.Receipt, "."), m.MaxReceipt, len(receipt))
	case len(m.Receipt) == 0 && belongs == "":
		return "", fmt.Errorf("it has no idempotency key in %s", strings.Join(m.Key, "."))
	case belongs != "" && belongs != req.key:
		return "", errOtherKey
	}
	return receipt, nil
}

// readOwner returns the receipt in an answer, and the idempotency key to which the answer belongs. Both may be
// empty.
func readOwner(m *Mapping, r *reply) (receipt, belongs string, err error) {
	if r.readErr != nil {
		return "", "", r.readErr
	}
	values, err := parse(r.body, field{path: m.Receipt, number: m.NumericReceipt}, field{path: m.Key})
	return strings.TrimSpace(values[0]), values[1], err
}

// errorText returns the status with the far side's own words, or with the body.
func errorText(r *reply, code, message string) string {
	text := fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
	switch {
	case code != "" || message != "":
		text += ": " + strings.TrimSpace(code+" "+message)
	case r.readErr != nil:
		text += ": " + r.readErr.Error()
	case r.status >= 300 && r.status < 400:
		text += ": redirects are not followed: " + redirectOf(r.header.Get("Location"))
	case len(r.body) > 0:
		text += ": " + string(r.body)
	}
	return text
}

// redirectOf names the server of a Location. Its user, path and query may be secret, while the text stays in the ledger.
func redirectOf(location string) string {
	switch u, err := url.Parse(location); {
	case location == "":
		return "it names no address"
	case err != nil:
		return "its address can't be read"
	case u.Host == "":
		return "to another path of the server"
	}
	return "to " + pipeline.ServerOf(location).Name
}

// leastHidden is the length of the shortest header that is taken for a credential.
const leastHidden = 8

// redact removes the secret, and the values of headers, from a text in which the far side may have repeated them.
func (r *request) redact(text string) string {
	if r.secret != "" {
		text = strings.ReplaceAll(text, r.secret, "[redacted]")
	}
	for _, value := range r.headers {
		if len(value) >= leastHidden {
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
	}
	return text
}

// clean makes s printable on one line, and at most limit bytes long.
func clean(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case unicode.IsSpace(c):
			return ' '
		case c == utf8.RuneError, !unicode.IsPrint(c):
			return -1
		}
		return c
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}
