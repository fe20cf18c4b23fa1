package promotiontype

import (
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

func point() Type {
	return Type{
		Name:      "POINT",
		Operation: money.Operation{Name: "chargePoint", Path: "/v1/points/charges"},
		Column:    "amount",
		IsAmount:  true,
		Sample:    strconv.Itoa,
		newRecord: func() record { return new(pointRecord) },
		canonical: canonicalAmount,
		fields: []field{{"amount",
			`{"description": "minor units", "type": "integer", "minimum": 1, "maximum": 9223372036854775807}`}},
	}
}

type pointRecord struct {
	envelope
	Amount int64 `json:"amount"` // minor units, > 0
}

func (r *pointRecord) validate() error { return positive("amount", r.Amount) }

func (r *pointRecord) value() string { return strconv.FormatInt(r.Amount, 10) }

func (r *pointRecord) setValue(text string) (err error) {
	if r.Amount, err = strconv.ParseInt(text, 10, 64); err != nil {
		return fmt.Errorf("amount: must be a whole number of minor units, got %q", text)
	}
	return nil
}
