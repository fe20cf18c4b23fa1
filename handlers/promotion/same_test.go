package promotion

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A version that writes requests in another way goes on with the payouts under way, and sends what
// is stored.
func TestAnUpgradeIsNoConflict(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		run := newResources(&Config{Ledger: ledger.DefaultConfig(), MoneyAPI: MoneyConfig{LeaseMargin: time.Minute}})
		run.config.Ledger.DSN, run.instance = setting.NewSecret(dsn), "new"
		l, err := run.openLedger(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.NoError(t, l.Migrate(t.Context()))
		older := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: 7}, SummaryID: 9,
			Payload: []byte(pointPayload(1, 7, 500)), Request: []byte(`{"amount":500,"currency":"EUR","targetId":7,"promotionSummaryId":9,"promotionId":1}`)}
		require.NoError(t, l.Accept(t.Context(), []payouts.Record{older}, ledger.AcceptOptions{})[0].Err)
		newer := older
		newer.Request = []byte(pointPayload(1, 7, 500))
		again := l.Accept(t.Context(), []payouts.Record{newer}, ledger.AcceptOptions{})[0]
		require.NoError(t, again.Err)
		require.Equal(t, rules.Enqueue, again.Next)
		b, err := l.Begin(t.Context(), newer)
		require.NoError(t, err)
		require.Equal(t, rules.Send, b.Next)
		require.Equal(t, string(older.Request), string(b.Request), "the stored request is sent")
	})
}

func pointPayload(promotion, target, amount int64) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, promotion, target, amount)
}
