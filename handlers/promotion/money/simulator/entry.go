package simulator

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// Entry is a key that was charged. In JSON its value is in the column of its type, such as amount.
type Entry struct {
	Key                string    `json:"key"`
	Type               string    `json:"type"`
	PromotionID        int64     `json:"promotionId"`
	PromotionSummaryID int64     `json:"promotionSummaryId"`
	TargetID           int64     `json:"targetId"`
	Value              string    `json:"-"`              // the amount, or the voucher
	TransactionKey     string    `json:"transactionKey"` // of the latest execution
	BodyHash           string    `json:"bodyHash"`       // first half of the body's SHA-256, hex
	Executions         int       `json:"executions"`     // 1, or more after KeyTTL
	ChargedAt          time.Time `json:"chargedAt"`      // latest execution
	// Overlaps and AfterPaid are those of Summary, for this key.
	Overlaps  int `json:"overlaps,omitempty"`
	AfterPaid int `json:"afterPaid,omitempty"`
}

type entryFields Entry // without methods

// MarshalJSON implements json.Marshaler.
func (e Entry) MarshalJSON() ([]byte, error) {
	return marshalWithValue(entryFields(e), e.Type, e.Value)
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Entry) UnmarshalJSON(data []byte) (err error) {
	if err := json.Unmarshal(data, (*entryFields)(e)); err != nil {
		return err
	}
	e.Value, err = unmarshalValue(data, e.Type)
	return err
}

type lineFields line // without methods

// MarshalJSON implements json.Marshaler.
func (l line) MarshalJSON() ([]byte, error) { return marshalWithValue(lineFields(l), l.Type, l.Value) }

// UnmarshalJSON implements json.Unmarshaler.
func (l *line) UnmarshalJSON(data []byte) (err error) {
	if err := json.Unmarshal(data, (*lineFields)(l)); err != nil {
		return err
	}
	l.Value, err = unmarshalValue(data, l.Type)
	return err
}

// marshalWithValue adds a value to an object: an amount as a number, any other value as a string.
func marshalWithValue(object any, name, value string) ([]byte, error) {
	t, known := promotiontype.ByName(name)
	text, err := json.Marshal(object)
	if err != nil || !known {
		return text, err
	}
	raw := []byte(value)
	if !t.IsAmount {
		if raw, err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return append(fmt.Appendf(text[:len(text)-1], ",%q:", t.Column), append(raw, '}')...), nil
}

// unmarshalValue returns the value of an object, or nothing for an unknown type.
func unmarshalValue(data []byte, name string) (value string, err error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return "", err
	}
	t, _ := promotiontype.ByName(name)
	raw, found := all[t.Column]
	if !found || t.IsAmount {
		return string(raw), nil
	}
	err = json.Unmarshal(raw, &value)
	return value, err
}
