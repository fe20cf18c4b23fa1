package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb/sqldbtest"
)

func TestRequestsAreComparedByMeaning(t *testing.T) {
	t.Parallel()
	const point, voucher = `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500}`, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V&1"}`
	for _, tt := range []struct {
		kind            ledger.Type
		stored, offered string
		same            bool
	}{
		{"POINT", point, point, true},
		{"POINT", `{"amount":500,"targetId":7,"promotionSummaryId":9,"promotionId":1}`, point, true},
		{"POINT", `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"currency":"EUR"}`, point, true},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":501}`, false},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":8,"targetId":7,"amount":500}`, false},
		{"POINT", point, `{"promotionId":1,"promotionSummaryId":9,"targetId":8,"amount":500}`, false},
		{"POINT", point, `{"promotionId":2,"promotionSummaryId":9,"targetId":7,"amount":500}`, false},
		{"POINT", `no JSON`, point, false},
		{"VOUCHER", `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V\u00261"}`, voucher, true},
		{"VOUCHER", voucher, `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V&2"}`, false},
		{"COIN", point, point + " ", false},
	} {
		require.Equal(t, tt.same, samePayout(tt.kind, []byte(tt.stored), []byte(tt.offered)), "%s and %s", tt.stored, tt.offered)
		require.Equal(t, tt.same, samePayout(tt.kind, []byte(tt.offered), []byte(tt.stored)))
	}
}

// A version that writes requests in another way goes on with the payouts under way, and sends what is stored.
func TestAnUpgradeIsNoConflict(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		run := newEngine(&Config{Ledger: ledger.DefaultConfig(), MoneyAPI: MoneyConfig{LeaseMargin: time.Minute}}, newMetrics())
		run.config.Ledger.DSN, run.instance = pipeline.NewSecret(dsn), "new"
		l, err := run.openLedger(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.NoError(t, l.Migrate(t.Context()))
		older := ledger.Record{Key: ledger.Key{Type: "POINT", Promotion: 1, Target: 7}, SummaryID: 9,
			Payload: []byte(offerOf(1, 7, 500)), Request: []byte(`{"amount":500,"currency":"EUR","targetId":7,"promotionSummaryId":9,"promotionId":1}`)}
		_, err = l.Accept(t.Context(), older, false)
		require.NoError(t, err)
		newer := older
		newer.Request = []byte(offerOf(1, 7, 500))
		again, err := l.Accept(t.Context(), newer, false)
		require.NoError(t, err)
		require.Equal(t, ledger.Enqueue, again.Next)
		b, err := l.Begin(t.Context(), newer)
		require.NoError(t, err)
		require.Equal(t, ledger.Send, b.Next)
		require.Equal(t, string(older.Request), string(b.Request), "the stored request is sent")
	})
}
