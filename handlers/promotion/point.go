package promotion

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

func pointStrategy() strategy {
	return strategy{
		kind:      "POINT",
		operation: money.ChargePoint,
		decode: func(payload []byte) (payout, error) {
			var m PointMessage
			if err := decodeMessage(payload, &m); err != nil {
				return payout{}, err
			}
			m.RetryCount = 0 // the same request on every attempt
			request, err := json.Marshal(m)
			return payout{m.PromotionID, m.PromotionSummaryID, m.TargetID, request, m.Amount}, err
		},
		record: func(promotion, summary, target int64, value string) ([]byte, error) {
			amount, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("amount: must be a whole number of minor units, got %q", value)
			}
			m := PointMessage{envelope{PromotionID: promotion, PromotionSummaryID: summary, TargetID: target}, amount}
			if err := m.Validate(); err != nil {
				return nil, err
			}
			return json.Marshal(m)
		},
	}
}
