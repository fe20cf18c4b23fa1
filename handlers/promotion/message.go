package promotion

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
)

// MaxPayloadBytes bounds a record's payload; a larger one is a dead letter of class too_large before it is
// decoded. A payout is some hundred bytes.
const MaxPayloadBytes = ledger.MaxPayloadBytes

// Classes of records that can't be accepted, beside pipeline.ClassUndecodable.
const (
	classTooLarge    = "too_large"
	classUnknownType = "unknown_type"
	classWrongStream = "wrong_stream" // an entry whose payload names another promotion than its stream does
)

// envelope is what point, voucher and retry records share.
type envelope struct {
	PromotionID        int64 `json:"promotionId"`
	PromotionSummaryID int64 `json:"promotionSummaryId"`
	TargetID           int64 `json:"targetId"`
	RetryCount         int   `json:"retryCount,omitempty"` // retries spent so far; only in retry records
}

func (e envelope) validate() error {
	return errors.Join(
		positive("promotionId", e.PromotionID),
		positive("promotionSummaryId", e.PromotionSummaryID),
		positive("targetId", e.TargetID),
		within("retryCount", e.RetryCount, 0, 5),
	)
}

// PointMessage is a record of campaign-promotion-point-publish and -retry.
type PointMessage struct {
	envelope
	Amount int64 `json:"amount"` // minor units, > 0
}

// Validate reports every wrong field at once.
func (m PointMessage) Validate() error {
	return errors.Join(m.validate(), positive("amount", m.Amount))
}

// VoucherMessage is a record of campaign-promotion-voucher-publish and -retry.
type VoucherMessage struct {
	envelope
	VoucherID string `json:"voucherId"` // 1–64 characters
}

// Validate reports every wrong field at once.
func (m VoucherMessage) Validate() error {
	err := m.validate()
	if n := utf8.RuneCountInString(m.VoucherID); n < 1 || n > 64 {
		err = errors.Join(err, fmt.Errorf("voucherId: must have 1 to 64 characters, got %d", n))
	}
	if strings.ContainsRune(m.VoucherID, utf8.RuneError) { // half of a surrogate pair is decoded to it
		err = errors.Join(err, errors.New("voucherId: must be valid Unicode"))
	}
	return err
}

// StartedMessage is a record of campaign-promotion-started. TotalCount is a hint for sizing and may be
// wrong or 0.
type StartedMessage struct {
	PromotionID   int64  `json:"promotionId"`
	PromotionType string `json:"promotionType"`
	TotalCount    int64  `json:"totalCount"`
}

// Validate reports every wrong field at once. Whether the type is known is the plugin's to say.
func (m StartedMessage) Validate() error {
	var total error
	if m.TotalCount < 0 {
		total = fmt.Errorf("totalCount: must be >= 0, got %d", m.TotalCount)
	}
	return errors.Join(positive("promotionId", m.PromotionID), total)
}

func positive(field string, v int64) error {
	if v <= 0 {
		return fmt.Errorf("%s: must be > 0, got %d", field, v)
	}
	return nil
}

func within(field string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("%s: must be %d to %d, got %d", field, least, most, v)
	}
	return nil
}

// decodeMessage decodes a record of a size a payout can have.
func decodeMessage(payload []byte, v any) error {
	if len(payload) > MaxPayloadBytes {
		return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("payload has %d bytes, at most %d are accepted", len(payload), MaxPayloadBytes)), classTooLarge)
	}
	if err := unambiguous(payload); err != nil {
		return pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
	}
	return pipeline.Decode(payload, v)
}

// fieldNames are those that decide about money.
func fieldNames() []string {
	return []string{"promotionId", "promotionSummaryId", "targetId", "amount", "voucherId", "retryCount"}
}

// unambiguous refuses an object that two decoders may read as two payouts: a name that comes twice, one that differs from
// a field's name, or from another name, in case only, and text that is not UTF-8. What is no object is left to the decoder.
func unambiguous(payload []byte) error {
	if !utf8.Valid(payload) {
		return errors.New("the payload is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return nil //nolint:nilerr // the decoder names it
	}
	var names []string
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil //nolint:nilerr // the decoder names it
		}
		for _, field := range fieldNames() {
			if name != field && strings.EqualFold(name, field) {
				return fmt.Errorf("%q: the field's name is %s", name, field)
			}
		}
		for _, other := range names {
			if strings.EqualFold(name, other) {
				return fmt.Errorf("%q comes twice", name)
			}
		}
		if names = append(names, name); len(names) > maxNames {
			return fmt.Errorf("the payload has more than %d fields", maxNames)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil //nolint:nilerr // the decoder names it
		}
	}
	return nil
}

// maxNames bounds the fields of a payload: every name is compared with all before it.
const maxNames = 100

// withRetryCount returns payload with retryCount set to n and every other field as it came, in its order: of names that
// differ in case only, or come twice, the last one counts.
func withRetryCount(payload []byte, n int) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	begin, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("set retryCount: %w", err)
	}
	if begin != json.Delim('{') {
		return nil, errors.New("set retryCount: the payload is not a JSON object")
	}
	out := []byte{'{'}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("set retryCount: %w", err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("set retryCount: %w", err)
		}
		name, _ := token.(string) // the decoder gives nothing else in this place
		if strings.EqualFold(name, "retryCount") {
			continue
		}
		text, err := json.Marshal(name)
		if err != nil {
			return nil, fmt.Errorf("set retryCount: %w", err)
		}
		out = append(append(append(append(out, text...), ':'), value...), ',')
	}
	if _, err := dec.Token(); err != nil {
		return nil, fmt.Errorf("set retryCount: %w", err)
	}
	return fmt.Appendf(out, `"retryCount":%d}`, n), nil
}
