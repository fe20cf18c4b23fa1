package promotiontype

import (
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// cashback pays an amount of money.
func cashback() Type {
	return Type{
		Name:      "CASHBACK",
		Operation: money.Operation{Name: "chargeCashback", Path: "/v1/cashbacks/charges"},
		Column:    "cents",
		IsAmount:  true,
		Sample:    strconv.Itoa,
		newRecord: func() record { return new(cashbackRecord) },
		fields:    []field{{"cents", idSchema}},
	}
}

// cashbackRecord is a record of campaign-promotion-cashback-publish and -retry.
type cashbackRecord struct {
	envelope
	Cents int64 `json:"cents"` // > 0
}

func (r *cashbackRecord) validate() error { return positive("cents", r.Cents) }

func (r *cashbackRecord) value() string { return strconv.FormatInt(r.Cents, 10) }

func (r *cashbackRecord) setValue(text string) (err error) {
	if r.Cents, err = strconv.ParseInt(text, 10, 64); err != nil {
		return fmt.Errorf("cents: must be a whole number, got %q", text)
	}
	return nil
}
