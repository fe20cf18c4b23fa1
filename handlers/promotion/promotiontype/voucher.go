package promotiontype

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

func voucher() Type {
	return Type{
		Name:      "VOUCHER",
		Operation: money.Operation{Name: "chargeVoucher", Path: "/v1/vouchers/charges"},
		Column:    "voucherId",
		Sample:    func(n int) string { return "V-" + strconv.Itoa(n) },
		newRecord: func() record { return new(voucherRecord) },
		canonical: canonicalText,
		fields:    []field{{"voucherId", `{"type": "string", "minLength": 1, "maxLength": 64}`}},
	}
}

type voucherRecord struct {
	envelope
	VoucherID string `json:"voucherId"` // 1–64 characters
}

func (r *voucherRecord) validate() (err error) {
	if n := utf8.RuneCountInString(r.VoucherID); n < 1 || n > 64 {
		err = fmt.Errorf("voucherId: must have 1 to 64 characters, got %d", n)
	}
	// The decoder makes this rune of half a surrogate pair.
	if strings.ContainsRune(r.VoucherID, utf8.RuneError) {
		err = errors.Join(err, errors.New("voucherId: must be valid Unicode"))
	}
	return err
}

func (r *voucherRecord) value() string { return r.VoucherID }

func (r *voucherRecord) setValue(text string) error {
	r.VoucherID = text
	return nil
}
