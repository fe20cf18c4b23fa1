package promotiontype

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/millrace-io/millrace/pipeline"
)

// MaxPayloadBytes bounds the payload of a record. A larger one is a dead letter of class too_large.
const MaxPayloadBytes = 64 << 10

// ClassUnknownType is the class of records whose promotion type is not known.
const ClassUnknownType = "unknown_type"

// MaxRetryCount is the largest retryCount of a record. The ledger counts attempts, retryCount only
// informs.
const MaxRetryCount = 5

// record is a decoded record of one type. Its pointer is decoded from JSON and encoded to JSON.
type record interface {
	common() *envelope
	// validate reports all that is wrong with the type's own fields.
	validate() error
	// value returns what is paid, as text.
	value() string
	// setValue sets what is paid. It reports a text that has the wrong form; validate checks the
	// rest.
	setValue(text string) error
}

// envelope has the fields that all types share. A record embeds it.
type envelope struct {
	PromotionID        int64 `json:"promotionId"`
	PromotionSummaryID int64 `json:"promotionSummaryId"`
	TargetID           int64 `json:"targetId"`
	RetryCount         int   `json:"retryCount,omitempty"` // retries so far; only in retry records
}

func (e *envelope) common() *envelope { return e }

func (e *envelope) validateCommon() error {
	var retry error
	if e.RetryCount < 0 || e.RetryCount > MaxRetryCount {
		retry = fmt.Errorf("retryCount: must be 0 to %d, got %d", MaxRetryCount, e.RetryCount)
	}
	return errors.Join(
		positive("promotionId", e.PromotionID),
		positive("promotionSummaryId", e.PromotionSummaryID),
		positive("targetId", e.TargetID),
		retry,
	)
}

func positive(field string, v int64) error {
	if v <= 0 {
		return fmt.Errorf("%s: must be > 0, got %d", field, v)
	}
	return nil
}

func decode(payload []byte, v any) error {
	if len(payload) > MaxPayloadBytes {
		err := fmt.Errorf("payload has %d bytes, at most %d are accepted", len(payload), MaxPayloadBytes)
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassTooLarge)
	}
	err := unambiguous(payload)
	if err == nil {
		err = jsonv1.Unmarshal(payload, v) // as encoding/json, in less than half the time
	}
	if err != nil {
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
	}
	return nil
}

// maxNames bounds the fields of a payload: each name is compared with all before it.
const maxNames = 100

// unambiguous refuses an object that two decoders may read as two payouts. No name may occur twice,
// and none may differ only in case from a field's name or from another name. The text must be
// UTF-8. The decoder reports all other errors.
func unambiguous(payload []byte) error {
	if !utf8.Valid(payload) {
		return errors.New("the payload is not valid UTF-8")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(payload), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if begin, err := dec.ReadToken(); err != nil || begin.Kind() != jsontext.KindBeginObject {
		return nil //nolint:nilerr // the decoder reports it
	}
	names := make([]string, 0, 8)
	for dec.PeekKind() == jsontext.KindString {
		token, err := dec.ReadToken()
		if err != nil {
			return nil //nolint:nilerr // the decoder reports it
		}
		name := token.String()
		if field, wrong := miswritten(name); wrong {
			return fmt.Errorf("%q: the field's name is %s", name, field)
		}
		for _, other := range names {
			if strings.EqualFold(name, other) {
				return fmt.Errorf("%q comes twice", name)
			}
		}
		if names = append(names, name); len(names) > maxNames {
			return fmt.Errorf("the payload has more than %d fields", maxNames)
		}
		if err := dec.SkipValue(); err != nil {
			return nil //nolint:nilerr // the decoder reports it
		}
	}
	return nil
}

// miswritten reports whether name differs only in case from the name of a field of any type.
func miswritten(name string) (field string, wrong bool) {
	differs := func(field string) bool { return name != field && strings.EqualFold(name, field) }
	for _, f := range envelopeFields {
		if differs(f.name) {
			return f.name, true
		}
	}
	for i := range types {
		for _, f := range types[i].fields {
			if differs(f.name) {
				return f.name, true
			}
		}
	}
	return "", false
}

// WithRetryCount returns payload with retryCount set to n, limited to 0 to MaxRetryCount. All other
// fields stay unchanged and in their order. Each field that is retryCount in any case is replaced.
func WithRetryCount(payload []byte, n int) ([]byte, error) {
	out, err := withoutRetryCount(payload)
	if err != nil {
		return nil, fmt.Errorf("set retryCount: %w", err)
	}
	return fmt.Appendf(out, `"retryCount":%d}`, min(max(n, 0), MaxRetryCount)), nil
}

// withoutRetryCount returns the object without its end: further fields can be appended.
func withoutRetryCount(payload []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	begin, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if begin != json.Delim('{') {
		return nil, errors.New("the payload is not a JSON object")
	}
	out := []byte{'{'}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		name, _ := token.(string) // the decoder returns only names here
		if strings.EqualFold(name, "retryCount") {
			continue
		}
		text, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		out = append(append(append(append(out, text...), ':'), value...), ',')
	}
	_, err = dec.Token()
	return out, err
}

// Topics of the started event, which all types share.
const (
	StartedTopic     = "campaign-promotion-started"
	StartedDeadTopic = "campaign-promotion-started-dead"
)

// Started is a record of campaign-promotion-started.
type Started struct {
	PromotionID   int64  `json:"promotionId"`
	PromotionType string `json:"promotionType"` // not checked by Validate
	TotalCount    int64  `json:"totalCount"`    // for sizing; may be wrong or 0
}

// Validate reports all wrong fields at once.
func (s Started) Validate() error {
	var total error
	if s.TotalCount < 0 {
		total = fmt.Errorf("totalCount: must be >= 0, got %d", s.TotalCount)
	}
	return errors.Join(positive("promotionId", s.PromotionID), total)
}
