package simulator

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// Entry is a key that was charged. In JSON its value is in the field that is the column of its
// type, such as amount.
type Entry struct {
	Key                string    `json:"key"`
	Type               string    `json:"type"`
	PromotionID        int64     `json:"promotionId"`
	PromotionSummaryID int64     `json:"promotionSummaryId"`
	TargetID           int64     `json:"targetId"`
	Value              string    `json:"-"`              // what was paid: the amount, the voucher
	TransactionKey     string    `json:"transactionKey"` // of the latest execution
	BodyHash           string    `json:"bodyHash"`       // first half of the body's SHA-256, hex
	Executions         int       `json:"executions"`     // how often the key was charged: 1, unless it was forgotten
	ChargedAt          time.Time `json:"chargedAt"`      // latest execution
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
	e.Value, _, err = unmarshalValue(data, e.Type)
	return err
}

type lineFields line // without methods

// MarshalJSON implements json.Marshaler.
func (l line) MarshalJSON() ([]byte, error) { return marshalWithValue(lineFields(l), l.Type, l.Value) }

// UnmarshalJSON implements json.Unmarshaler. An unknown field is an error.
func (l *line) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, (*lineFields)(l)); err != nil {
		return err
	}
	value, others, err := unmarshalValue(data, l.Type)
	if err != nil {
		return err
	}
	l.Value = value
	if _, known := promotiontype.ByName(l.Type); !known {
		return nil // load reports it
	}
	known := []string{"n", "key", "type", "promotionId", "promotionSummaryId", "targetId", "bodyHash", "at"}
	for name := range others {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown field %q", name)
		}
	}
	return nil
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

// unmarshalValue returns the value of an object and the object's other fields.
func unmarshalValue(data []byte, name string) (value string, others map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(data, &others); err != nil {
		return "", nil, err
	}
	t, known := promotiontype.ByName(name)
	raw, found := others[t.Column]
	if !known || !found {
		return "", others, nil
	}
	delete(others, t.Column)
	if t.IsAmount {
		return string(raw), others, nil
	}
	return value, others, json.Unmarshal(raw, &value)
}
