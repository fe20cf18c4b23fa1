package promotion_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A payout whose record this version can't decode, such as one of a later version, is enqueued again by the feeder until
// it has used up max_released. It then ends with one dead letter, nothing of it is sent, and the other payouts are paid.
func TestAnUndecodablePayoutEnds(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Ledger.MaxReleased = 2 })
		for name, payload := range map[string]string{
			"undecodable":          `{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":"a lot"}`,
			"of another promotion": `{"promotionId":2,"promotionSummaryId":9,"targetId":2,"amount":20}`,
		} {
			rec := pointRecord(1)
			if name != "undecodable" {
				rec = pointRecord(2)
			}
			rec.Payload = []byte(payload)
			require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err, name)
		}
		good := pointRecord(3)
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{good}, ledger.AcceptOptions{})[0].Err)
		sys.start()
		c := sys.settle("POINT", 3)
		require.EqualValues(t, 1, c.Paid)
		require.EqualValues(t, 2, c.Failed)
		for _, target := range []int64{1, 2} {
			x, err := sys.ledger.Explain(t.Context(), payouts.Key{Type: "POINT", Promotion: 1, Target: target})
			require.NoError(t, err)
			require.Equal(t, rules.Failed, x.State)
			require.Len(t, x.Calls, 2)
			require.Len(t, x.DeadLetters, 1, "not one per round of the feeder")
			require.Equal(t, pipeline.ClassUndecodable, x.DeadLetters[0].Class, fmt.Sprint(target))
		}
		page, err := sys.api.Page(simulator.Query{})
		require.NoError(t, err)
		paid := page.Entries
		require.Len(t, paid, 1)
		require.Equal(t, good.Key.String(), paid[0].Key)
		for _, letter := range sys.dead(2) { // the dead letters of the ledger, and no other
			require.Equal(t, pipeline.ClassUndecodable, letter.Class)
		}
	})
}
