package promotiontype_test

import (
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

func Example() {
	for _, name := range []string{"POINT", "VOUCHER"} {
		t, _ := promotiontype.ByName(name)
		record, err := t.Encode(12345, 9, 777, t.Sample(500))
		if err != nil {
			panic(err)
		}
		payout, err := t.Decode(record)
		if err != nil {
			panic(err)
		}
		fmt.Println(t.PublishTopic(), t.IdempotencyKey(payout.Promotion, payout.Target), payout.Value)
	}
	// Output:
	// campaign-promotion-point-publish POINT:12345:777 500
	// campaign-promotion-voucher-publish VOUCHER:12345:777 V-500
}
