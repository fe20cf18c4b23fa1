package money

import (
	"bytes"
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

// codeNotFound is the API's code for "no charge with this key". A 404 without it comes from another
// server, such as a gateway.
const codeNotFound = "charge_not_found"

type reply struct {
	status  int
	header  http.Header
	body    []byte
	readErr error // nil if body is complete
}

type request struct {
	lookup bool
	key    string
	body   []byte // of a charge
	secret string // must not be shown, also when the API repeats it; may be empty
}

// payoutCodes returns x-payout-codes of openapi.yaml: the codes of a 403 or 404 that concern only
// the payout of the request. Any other code concerns the client.
func payoutCodes(status int) []string {
	switch status {
	case http.StatusForbidden:
		return []string{"member_blocked"}
	case http.StatusNotFound:
		return []string{"member_not_found", "voucher_not_found"}
	}
	return nil
}

// ownCode is the form of the API's own codes in openapi.yaml.
var ownCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// parse returns the members of a JSON object with exactly these names. encoding/json ignores case.
func parse(body []byte, names ...string) ([]string, error) {
	if values, ok := parsePlain(body, names); ok {
		return values, nil
	}
	return parseAny(body, names)
}

// parsePlain reads an object of strings without escapes, as openapi.yaml has them. It costs a fifth
// of parseAny, and returns the same.
func parsePlain(body []byte, names []string) (values []string, ok bool) {
	const space = " \t\r\n"
	token := func(end byte) (text []byte, ok bool) { // up to end, which it consumes
		text, body, ok = bytes.Cut(body, []byte{end})
		return text, ok
	}
	separator := func(c byte) bool {
		text, ok := token(c)
		return ok && len(bytes.Trim(text, space)) == 0
	}
	text := func() (text []byte, ok bool) {
		if !separator('"') {
			return nil, false
		}
		text, ok = token('"')
		return text, ok && !bytes.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' || c == '\\' })
	}
	values = make([]string, len(names))
	if !separator('{') {
		return nil, false
	}
	for {
		name, ok := text()
		if !ok || !separator(':') {
			return nil, false
		}
		value, ok := text()
		if !ok {
			return nil, false
		}
		if i := slices.Index(names, string(name)); i >= 0 {
			values[i] = string(value)
		}
		body = bytes.TrimLeft(body, space)
		if !bytes.HasPrefix(body, []byte(",")) {
			return values, separator('}') && len(bytes.Trim(body, space)) == 0
		}
		body = body[1:]
	}
}

func parseAny(body []byte, names []string) ([]string, error) {
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

// classify turns a reply into an Answer and its meaning for the API's health. It is a pure function
// of its arguments.
//
// Only the API's own words prove that something was charged, or was not: a transactionKey in a 200
// or 201, or a code. Any other answer may come from a proxy that passed the request on.
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
	wait, given := retryAfter(r.header, now, cfg.MaxRetryAfter)
	if !given && r.status == http.StatusTooManyRequests {
		wait, given = clamp(cfg.DefaultRetryAfter, cfg.MaxRetryAfter), true
	}
	var v verdict
	a.Class, v = classifyStatus(req, r.status, code, given)
	if code == "" {
		a.Class = Unrecognized
	}
	if a.Class == Throttled || a.Class == Retry || a.Class == Unrecognized {
		a.RetryAfter = wait
	}
	return a, v
}

// classifyStatus classifies any answer but a 2xx. Without a code only the verdict is valid. given
// states whether there is a Retry-After.
func classifyStatus(req *request, status int, code string, given bool) (Class, verdict) {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable && given:
		return Throttled, throttling
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return Retry, failing
	case status < 300, status >= 500:
		return Ambiguous, failing
	case status < 400:
		return Ambiguous, misconfigured // after a POST a redirect may mean "done"
	case status == http.StatusConflict && code == "":
		return Ambiguous, neutral
	case status == http.StatusConflict:
		return Ambiguous, healthy
	case code == "", status == http.StatusUnauthorized:
		return Misconfigured, misconfigured
	case req.lookup && status == http.StatusNotFound && code == codeNotFound:
		return NoCharge, healthy
	case status == http.StatusForbidden || status == http.StatusNotFound:
		if !slices.Contains(payoutCodes(status), code) {
			return Misconfigured, misconfigured
		}
	}
	return Rejected, healthy
}

// classifyCharged classifies a 2xx. It is Paid if it is a 200 or 201 that can be read and belongs
// to the request. A 202 means that the charge is only planned.
func classifyCharged(req *request, r *reply) (Answer, verdict) {
	a := Answer{Class: Ambiguous, Status: r.status}
	values, err := make([]string, 2), r.readErr
	if err == nil {
		values, err = parse(r.body, "transactionKey", "idempotencyKey")
	}
	key, belongs := strings.TrimSpace(values[0]), values[1]
	switch {
	case err != nil:
		a.Err = fmt.Errorf("read answer: %w", err)
	case key == "", len(key) > maxKeyLen:
		a.Err = fmt.Errorf("transactionKey must have 1 to %d characters, got %d", maxKeyLen, len(key))
	case belongs != "" && belongs != req.key:
		a.Err = errors.New("the answer belongs to another idempotency key")
	case r.status != http.StatusOK && r.status != http.StatusCreated:
		a.Err = errors.New("only 200 and 201 mean that it was charged")
	default:
		a.Class, a.TransactionKey = Paid, key
		return a, healthy
	}
	a.Text = clean(fmt.Sprintf("%d, but %s", r.status, a.Err), maxTextLen)
	return a, failing
}

// errorText returns the status with the API's own words, or with the body.
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

// redact removes the secret from a text in which the API may have repeated it.
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
	return strings.ToValidUTF8(s[:min(len(s), limit)], "")
}
