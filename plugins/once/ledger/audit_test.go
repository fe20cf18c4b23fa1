package ledger

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// The audit of all kinds has the newest first, page by page. What is seen of an effect is in it, too.
func TestRecentAudit(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 2)...)
		id := records("acme", 1)[0].Key
		require.NoError(t, l.Pause(t.Context(), acme, By{Who: "ann (console, operator)", Why: "too fast"}))
		require.NoError(t, l.RecordReveal(t.Context(), id, By{Who: "bob (API, admin)", Why: "ticket 7"}))
		require.NoError(t, l.Resume(t.Context(), acme, By{Who: "ann", Why: "slower"}))
		require.NoError(t, l.RecordSend(t.Context(), Key{"invoice", "acme", "new"}, "invoices", By{Who: "kim", Why: "by hand"}))

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
		require.Equal(t, []string{
			"send invoice/acme/new by kim: by hand", "resume invoice/acme by ann: slower", fmt.Sprintf("reveal invoice/acme/%s by bob (API, admin): ticket 7", id.ID), "pause invoice/acme by ann (console, operator): too fast",
		}, got)
		x, err := l.Explain(t.Context(), id)
		require.NoError(t, err)
		require.Len(t, x.Audit, 1)

		id.ID = "absent"
		require.ErrorIs(t, l.RecordReveal(t.Context(), id, By{Who: "bob", Why: "x"}), ErrNotFound)
		require.ErrorContains(t, l.RecordReveal(t.Context(), id, By{Who: "bob"}), "the audit needs why")
		_, err = l.RecentAudit(t.Context(), operate.AuditFilter{Before: "x"}, 2)
		require.ErrorContains(t, err, "before must be the id of a change")
	})
}
