package ledger

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
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

// A probe is recorded once, for a promotion of which the ledger has nothing.
func TestRecordProbe(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l, by := h.open(t), Steering{Who: "ann", Why: "a new API"}
		own := payouts.Key{Type: "POINT", Promotion: 7, Target: 9}
		require.ErrorIs(t, l.RecordProbe(t.Context(), own, Steering{Who: "ann"}), rules.ErrInvalid)
		preview := by
		preview.Try = true
		require.NoError(t, l.RecordProbe(t.Context(), own, preview))
		require.NoError(t, l.RecordProbe(t.Context(), own, by), "a preview records nothing")
		require.ErrorIs(t, l.RecordProbe(t.Context(), own, by), ErrRefused)
		require.ErrorIs(t, l.RecordProbe(t.Context(), own, preview), ErrRefused)

		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 8}, 5))
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 9}, Steering{Who: "ann", Why: "later", Future: true}))
		for _, known := range []int64{8, 9} {
			require.ErrorIs(t, l.RecordProbe(t.Context(), payouts.Key{Type: "POINT", Promotion: known, Target: 9}, by), ErrRefused)
		}
		page, err := l.RecentAudit(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		require.Len(t, page.Changes, 2)
		require.Equal(t, []string{"probe", "POINT:7:9"}, []string{page.Changes[1].Action, page.Changes[1].Subject})
	})
}
