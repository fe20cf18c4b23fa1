package promotion

import (
	"encoding/json"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

func voucherStrategy() strategy {
	return strategy{
		kind:      "VOUCHER",
		operation: money.ChargeVoucher,
		decode: func(payload []byte) (payout, error) {
			var m VoucherMessage
			if err := decodeMessage(payload, &m); err != nil {
				return payout{}, err
			}
			m.RetryCount = 0 // the same request on every attempt
			request, err := json.Marshal(m)
			return payout{m.PromotionID, m.PromotionSummaryID, m.TargetID, request, 0}, err
		},
		record: func(promotion, summary, target int64, value string) ([]byte, error) {
			m := VoucherMessage{envelope{PromotionID: promotion, PromotionSummaryID: summary, TargetID: target}, value}
			if err := m.Validate(); err != nil {
				return nil, err
			}
			return json.Marshal(m)
		},
	}
}
