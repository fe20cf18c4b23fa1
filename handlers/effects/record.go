package effects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/internal/jsonpath"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// record is a record as it came, which is JSON.
type record json.RawMessage

func decode(payload []byte) (record, error) {
	if !utf8.Valid(payload) { // encoding/json replaces such bytes, so two keys could become one
		return nil, errors.New("it is not UTF-8")
	}
	var raw json.RawMessage
	if err := json.Unmarshal(payload, &raw); err != nil {
		return nil, fmt.Errorf("it is not JSON: %w", err)
	}
	return record(raw), nil
}

// wholeNumber is the only form in which a number is a key, because 17, 17.0 and 1.7e1 are one number and
// would be three keys.
var wholeNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// keyOf returns the key of the effect of the kind called name that a record asks for.
func (k *Kind) keyOf(name string, r record) (once.Key, error) {
	id, err := r.name("key", k.Key)
	group, wrong := r.name("group", k.Group)
	key := once.Key{Group: group, ID: id}
	if err = errors.Join(err, wrong); err == nil {
		err = k.fits(name, key)
	}
	return key, err
}

// fits returns why an effect can't be called for with its idempotency key, or at the paths of the kind.
func (k *Kind) fits(name string, key once.Key) error {
	idempotency := once.Kind[record]{Name: name, Idempotency: k.idempotency(name)}.IdempotencyKey(key)
	switch reason := oncehttp.CheckKey(idempotency); {
	case reason == nil:
	case k.Request.IdempotencyKey == keyID:
		return fmt.Errorf("key: %s is the idempotency key, because request.idempotency_key is id: %w", k.Key, reason)
	default:
		return fmt.Errorf("the idempotency key is made of group and key, whose characters beyond ASCII count threefold or more: %w: set request.idempotency_key to uuid", reason)
	}
	if err := oncehttp.CheckCall(k.Request.Path, key, idempotency); err != nil {
		return fmt.Errorf("request.path: %w", err)
	}
	if k.Lookup == nil {
		return nil
	}
	if err := oncehttp.CheckCall(k.Lookup.Path, key, idempotency); err != nil {
		return fmt.Errorf("lookup.path: %w", err)
	}
	return nil
}

// name returns the text or whole number at the path of a setting.
func (r record) name(setting, path string) (string, error) {
	value, err := r.at(setting, path)
	if err != nil {
		return "", err
	}
	var text string
	switch {
	case wholeNumber.Match(value):
		text = string(value)
	case json.Unmarshal(value, &text) != nil:
		return "", fmt.Errorf("%s: %s is %s: expected a text or a whole number", setting, path, describe(value))
	}
	switch {
	case text == "":
		return "", fmt.Errorf("%s: %s is empty: expected 1 to %d bytes", setting, path, once.MaxKey)
	case len(text) > once.MaxKey:
		return "", fmt.Errorf("%s: %s has %d bytes: expected 1 to %d", setting, path, len(text), once.MaxKey)
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", fmt.Errorf("%s: %s has a control character: expected printable text", setting, path)
	}
	return text, nil
}

// at returns the value at the path of a setting. It is an error if there is none, or null.
func (r record) at(setting, path string) (json.RawMessage, error) {
	p, err := jsonpath.Parse(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	value, found := p.Find(json.RawMessage(r))
	switch {
	case !found:
		return nil, fmt.Errorf("%s: the record has no %s", setting, path)
	case string(value) == "null":
		return nil, fmt.Errorf("%s: %s is null", setting, path)
	}
	return value, nil
}

// describe says what a value is, without the value: it may be private.
func describe(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a text"
	case 't', 'f':
		return string(value)
	}
	return "a number with a fraction or an exponent"
}

// requestOf returns the body of the request, without the space between its parts: a record that comes again
// in another form asks for the same effect.
func (k *Kind) requestOf(r record) ([]byte, error) {
	if _, err := k.timeOf(r); err != nil {
		return nil, err
	}
	// Otherwise it would be compared with no book, and nobody would notice.
	if _, err := k.sumOf(r); err != nil {
		return nil, err
	}
	value := json.RawMessage(r)
	if k.Request.Body != "" {
		var err error
		if value, err = r.at("request.body", k.Request.Body); err != nil {
			return nil, err
		}
	}
	var body bytes.Buffer
	if err := json.Compact(&body, value); err != nil {
		return nil, fmt.Errorf("request.body: %w", err)
	}
	return body.Bytes(), nil
}

// notBefore returns the earliest time of the first attempt. A record with a time that can't be read has no
// request either, so its error is not lost.
func (k *Kind) notBefore(r record) time.Time {
	at, _ := k.timeOf(r)
	return at
}

func (k *Kind) timeOf(r record) (time.Time, error) {
	p, err := jsonpath.Parse(k.NotBefore)
	if k.NotBefore == "" || err != nil {
		return time.Time{}, nil //nolint:nilerr // Validate has refused it
	}
	value, found := p.Find(json.RawMessage(r))
	if !found || string(value) == "null" {
		return time.Time{}, nil
	}
	var at time.Time
	if err := json.Unmarshal(value, &at); err != nil {
		return at, fmt.Errorf("not_before: %s is no time such as 2026-01-31T09:00:00Z", k.NotBefore)
	}
	return at, nil
}

// sumOf returns what the effect amounts to, and 0 if the kind has no sums. A text or a fraction is no sum, because its
// unit can't be told.
func (k *Kind) sumOf(r record) (int64, error) {
	if k.Sum == "" {
		return 0, nil
	}
	value, err := r.at("sum", k.Sum)
	if err != nil {
		return 0, err
	}
	if !wholeNumber.Match(value) {
		return 0, fmt.Errorf("sum: %s is %s: expected a whole number", k.Sum, describe(value))
	}
	sum, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("sum: %s has more than 64 bits", k.Sum)
	}
	return sum, nil
}
