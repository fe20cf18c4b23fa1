package money

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxBodyBytes = 64 << 10 // of an answer; more is unreadable
	maxKeyLen    = 128      // of an idempotency key and of a transaction key
	maxTextLen   = 240      // of Answer.Text
	maxCodeLen   = 64
)

// codeNotFound is the API's code for "no charge with this key"; a 404 without it comes from
// somewhere else, such as a gateway with another idea of the path.
const codeNotFound = "charge_not_found"

var errTooLarge = errors.New("answer too large")

// reply is an HTTP answer, its body read as far as it could be.
type reply struct {
	status  int
	header  http.Header
	body    []byte
	readErr error // why body is not whole; nil if it is
}

// request is what reply answers.
type request struct {
	lookup bool
	key    string
	body   []byte // of a charge
	secret string // not to be shown, also when the API echoes it; may be empty
}

// chargeBody is the schema Charge of the contract.
type chargeBody struct {
	TransactionKey string `json:"transactionKey"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// errorBody is the schema Error of the contract.
type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// classify turns a reply into an Answer and says what it tells about the API's health. It is a
// pure function of its arguments.
func classify(req *request, r *reply, now time.Time, cfg *Config) (Answer, verdict) {
	if r.status >= 200 && r.status < 300 {
		return classifyCharged(req, r)
	}
	var e errorBody
	if r.readErr == nil && json.Unmarshal(r.body, &e) != nil {
		e = errorBody{}
	}
	a := Answer{Status: r.status, Code: clean(redact(e.Code, req.secret), maxCodeLen)}
	a.Text = clean(redact(errorText(r, e), req.secret), maxTextLen)
	fromAPI := a.Code != ""
	switch s := r.status; {
	case s == http.StatusTooManyRequests, s == http.StatusServiceUnavailable:
		wait, ok := retryAfter(r.header, now, cfg.RetryAfterMax)
		if !ok && s == http.StatusServiceUnavailable {
			a.Class = Ambiguous // a proxy says this of a request that it has passed on, too
			return a, failing
		}
		if !ok {
			wait = clamp(cfg.ThrottleDefault, cfg.RetryAfterMax)
		}
		a.Class, a.RetryAfter = Throttled, wait
		return a, healthy
	case s == http.StatusConflict:
		a.Class = Ambiguous
		return a, healthy
	case s == http.StatusRequestTimeout, s == http.StatusTooEarly:
		a.Class = Retry
		return a, failing
	case req.lookup && s == http.StatusNotFound && a.Code == codeNotFound:
		a.Class = NoCharge
		return a, healthy
	case s == http.StatusUnauthorized, s == http.StatusForbidden, s == http.StatusNotFound:
		a.Class = OwnFault
		return a, trip
	case req.lookup && s >= 400 && s < 500:
		// A question that is refused says nothing about the charge.
		a.Class = OwnFault
		return a, trip
	case s == http.StatusBadRequest, s == http.StatusUnprocessableEntity:
		a.Class = Rejected
		if !fromAPI {
			return a, failing // a broken gateway in front must not fail a whole campaign
		}
		return a, healthy
	case s >= 400 && s < 500 && fromAPI:
		a.Class = Rejected
		return a, healthy
	case s >= 400 && s < 500:
		a.Class = OwnFault
		return a, trip
	case s >= 300 && s < 400:
		a.Class = Ambiguous // after a POST a redirect may mean "done, look there"
		return a, trip
	default:
		a.Class = Ambiguous
		return a, failing
	}
}

// classifyCharged judges a 2xx: Paid if it can be read and belongs to the request.
func classifyCharged(req *request, r *reply) (Answer, verdict) {
	a := Answer{Class: Ambiguous, Status: r.status}
	var c chargeBody
	err := r.readErr
	if err == nil {
		err = json.Unmarshal(r.body, &c)
	}
	switch {
	case err != nil:
		a.Err = fmt.Errorf("read answer: %w", err)
	case c.TransactionKey == "", len(c.TransactionKey) > maxKeyLen:
		a.Err = fmt.Errorf("transactionKey must have 1 to %d characters, got %d", maxKeyLen, len(c.TransactionKey))
	case c.IdempotencyKey != "" && c.IdempotencyKey != req.key:
		a.Err = errors.New("the answer belongs to another idempotency key")
	default:
		a.Class, a.TransactionKey = Paid, c.TransactionKey
		return a, healthy
	}
	a.Text = clean(fmt.Sprintf("%d, but %s", r.status, a.Err), maxTextLen)
	return a, failing
}

// errorText is for people: status, the API's own words, or the beginning of what came instead.
func errorText(r *reply, e errorBody) string {
	text := fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
	switch {
	case e.Code != "" || e.Message != "":
		text += ": " + strings.TrimSpace(e.Code+" "+e.Message)
	case r.readErr != nil:
		text += ": " + r.readErr.Error()
	case r.status >= 300 && r.status < 400:
		text += ": redirects are not followed: " + r.header.Get("Location")
	case len(r.body) > 0:
		text += ": " + string(r.body)
	}
	return text
}

// redact removes the secret from what an API may have echoed.
func redact(text, secret string) string {
	if secret == "" {
		return text
	}
	return strings.ReplaceAll(text, secret, "[redacted]")
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
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
