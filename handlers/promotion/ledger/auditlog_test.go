package ledger

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// The audit of all promotions and payouts has the newest first, page by page.
func TestRecentAudit(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 7}
		require.NoError(t, l.Pause(t.Context(), p, Steering{Who: "ann", Why: "wrong amounts", Future: true}))
		require.NoError(t, l.AuditSend(t.Context(), payouts.Key{Type: "POINT", Promotion: 7, Target: 9}, "bob@laptop", "a test", "points"))
		require.NoError(t, l.Resume(t.Context(), p, Steering{Who: "ann", Why: "right again"}))
		var got []string
		filter := operate.AuditFilter{}
		for {
			page, err := l.RecentAudit(t.Context(), filter, 2)
			require.NoError(t, err)
			for _, c := range page.Changes {
				require.False(t, c.At.IsZero())
				got = append(got, fmt.Sprint(c.Action, " ", c.Subject, " by ", c.Who, ": ", c.Why))
			}
			if filter.Before = page.Next; page.Next == "" {
				break
			}
		}
		require.Equal(t, []string{"resume POINT:7 by ann: right again", "send POINT:7:9 by bob@laptop: a test", "pause POINT:7 by ann: wrong amounts"}, got)
	})
}
