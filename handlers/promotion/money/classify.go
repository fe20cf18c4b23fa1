package money

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxBodyBytes = 64 << 10 // of an answer; more is unreadable
	maxKeyLen    = 128      // of an idempotency key and of a transaction key
	maxTextLen   = 240      // of Answer.Text
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

// payoutCodes returns the codes of a 403 or 404 that are about the payout of the request: those of openapi.yaml
// (x-payout-codes). A 403 or 404 with any other code is about the client.
func payoutCodes(status int) []string {
	switch status {
	case http.StatusForbidden:
		return []string{"member_blocked"}
	case http.StatusNotFound:
		return []string{"member_not_found", "voucher_not_found"}
	}
	return nil
}

// ownCode is the form of the API's own codes, as openapi.yaml has it.
var ownCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// parse returns the members of a JSON object whose names are exactly these; encoding/json alone ignores case.
func parse(body []byte, names ...string) ([]string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(body, &all); err != nil {
		return make([]string, len(names)), err
	}
	values := make([]string, len(names))
	for i, name := range names {
		raw, there := all[name]
		if !there {
			continue
		}
		if err := json.Unmarshal(raw, &values[i]); err != nil {
			return make([]string, len(names)), fmt.Errorf("%s: %w", name, err)
		}
	}
	return values, nil
}

// classify turns a reply into an Answer and says what it tells about the API's health. It is a
// pure function of its arguments.
//
// Only the API's own words say that something was charged, or that nothing was: a transactionKey in a 200 or 201, or a code.
// Any other answer may come from a proxy, which may have passed the request on.
func classify(req *request, r *reply, now time.Time, cfg *Config) (Answer, verdict) {
	if r.status >= 200 && r.status < 300 {
		return classifyCharged(req, r)
	}
	code, message := "", ""
	if r.readErr == nil {
		if e, err := parse(r.body, "code", "message"); err == nil {
			code, message = e[0], e[1]
		}
	}
	a := Answer{Status: r.status, Text: clean(redact(errorText(r, code, message), req.secret), maxTextLen)}
	if !ownCode.MatchString(code) {
		code = ""
	}
	a.Code = redact(code, req.secret)
	wait, told := retryAfter(r.header, now, cfg.MaxRetryAfter)
	if !told && r.status == http.StatusTooManyRequests {
		wait, told = clamp(cfg.DefaultRetryAfter, cfg.MaxRetryAfter), true
	}
	if code == "" {
		a.Class = Unrecognized
		if told {
			a.RetryAfter = wait
		}
		return a, health(r.status, told)
	}
	var v verdict
	switch a.Class, v = classifyCoded(req, r.status, code, told); a.Class {
	case Throttled, Retry:
		a.RetryAfter = wait
	}
	return a, v
}

// health is what an answer without the API's own code says about everyone's calls.
func health(status int, told bool) verdict {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && told:
		return throttling
	case status == http.StatusConflict:
		return neutral
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return failing
	case status >= 300 && status < 500:
		return misconfigured
	}
	return failing
}

// classifyCoded judges an answer with the API's own code.
func classifyCoded(req *request, status int, code string, told bool) (Class, verdict) {
	switch status {
	case http.StatusTooManyRequests:
		return Throttled, throttling
	case http.StatusServiceUnavailable:
		if told {
			return Throttled, throttling
		}
		return Ambiguous, failing // without Retry-After the API promises nothing
	case http.StatusConflict:
		return Ambiguous, healthy
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return Retry, failing
	case http.StatusUnauthorized:
		return OwnFault, misconfigured
	case http.StatusForbidden, http.StatusNotFound:
		switch {
		case req.lookup && status == http.StatusNotFound && code == codeNotFound:
			return NoCharge, healthy
		case !slices.Contains(payoutCodes(status), code):
			return OwnFault, misconfigured
		}
	}
	switch {
	case status >= 400 && status < 500:
		return Rejected, healthy
	case status >= 300 && status < 400:
		return Ambiguous, misconfigured // after a POST a redirect may mean "done, look there"
	}
	return Ambiguous, failing
}

// classifyCharged judges a 2xx: Paid if it is a 200 or 201 that can be read and belongs to the request. A 202 means that the
// charge is only planned.
func classifyCharged(req *request, r *reply) (Answer, verdict) {
	a := Answer{Class: Ambiguous, Status: r.status}
	err := r.readErr
	var key, belongs string
	if err == nil {
		var c []string
		if c, err = parse(r.body, "transactionKey", "idempotencyKey"); err == nil {
			key, belongs = strings.TrimSpace(c[0]), c[1]
		}
	}
	switch {
	case err != nil:
		a.Err = fmt.Errorf("read answer: %w", err)
	case key == "", len(key) > maxKeyLen:
		a.Err = fmt.Errorf("transactionKey must have 1 to %d characters, got %d", maxKeyLen, len(key))
	case belongs != "" && belongs != req.key:
		a.Err = errors.New("the answer belongs to another idempotency key")
	case r.status != http.StatusOK && r.status != http.StatusCreated:
		a.Err = errors.New("only 200 and 201 say that it was charged")
	default:
		a.Class, a.TransactionKey = Paid, key
		return a, healthy
	}
	a.Text = clean(fmt.Sprintf("%d, but %s", r.status, a.Err), maxTextLen)
	return a, failing
}

// errorText is for people: status, the API's own words, or the beginning of what came instead.
func errorText(r *reply, code, message string) string {
	text := fmt.Sprintf("%d %s", r.status, http.StatusText(r.status))
	switch {
	case code != "" || message != "":
		text += ": " + strings.TrimSpace(code+" "+message)
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
