package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func rowsOf(t *testing.T, l *Ledger, table string) (n int) {
	t.Helper()
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error { return r.Scan(&n) }, `SELECT count(*) FROM `+table)
	}))
	return n
}

// A settle locks no row that settles of other sessions lock, so one whose commit takes long holds
// back no other.
func TestSettlesOfAPromotionShareNoRow(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		payMany(t, l, 1, 3)
		require.NoError(t, l.Deactivate(t.Context(), p))
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		tag, err := tx.Exec(t.Context(), `SELECT FROM promotion_summaries FOR UPDATE`)
		require.NoError(t, err)
		require.EqualValues(t, 1, tag.RowsAffected())

		mustAccept(t, l, record(1, 10)) // the ordinary path
		b := mustBegin(t, l, record(1, 10))
		settled := 0
		require.NoError(t, l.store.(ordinaryStore).settleOrdinary(t.Context(),
			[]*payouts.CallResult{{Key: key(1, 10), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "T"}}}, false, func(int, *storedRow) { settled++ }))
		require.Equal(t, 1, settled)
		mustAccept(t, l, record(1, 11)) // the general path
		b = mustBegin(t, l, record(1, 11))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 11), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Rejected}})
		s, err := l.Status(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, PayoutCounts{Accepted: 5, Paid: 4, Failed: 1}, s.PayoutCounts)
	})
}

// The slots of a drained promotion are folded, by one of several instances, and no payout is
// counted twice or lost. A slot in use is folded the next time, and delays nothing.
func TestSummarySlotsAreFolded(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, other, conn := h.open(t), h.open(t, as("b")), h.connect(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		status := func() PayoutCounts {
			s, err := other.Status(t.Context(), p)
			require.NoError(t, err)
			return s.PayoutCounts
		}
		fold := func(slots, summaries int) {
			t.Helper()
			before, err := l.Totals(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Deactivate(t.Context(), p))
			require.NoError(t, other.Deactivate(t.Context(), p))
			after, err := l.Totals(t.Context())
			require.NoError(t, err)
			require.Equal(t, before, after)
			require.Equal(t, slots, rowsOf(t, l, "promotion_summary_slots"))
			require.Equal(t, summaries, rowsOf(t, l, "ONLY promotion_summaries"))
		}
		payMany(t, l, 1, 3)
		_, err := conn.Exec(t.Context(), `INSERT INTO promotion_summary_slots (type, promotion_id, summary_id, slot, paid, failed)
			SELECT 'POINT', 1, summary, 1000 + slot, 5, -1 FROM generate_series(1, 9) AS slot, (VALUES (9), (7)) AS s(summary)`)
		require.NoError(t, err)
		require.EqualValues(t, 3+9*5*2, status().Paid)
		fold(0, 2)
		require.EqualValues(t, 3+9*5*2, status().Paid)
		require.EqualValues(t, -18, status().Failed, "a payout that left a state counts -1")
		fold(0, 2)

		mustAccept(t, l, record(1, 10))
		b := mustBegin(t, l, record(1, 10))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 10), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "T"}})
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE promotion_summary_slots SET paid = paid + 1`)
		require.NoError(t, err)
		fold(1, 2)
		require.NoError(t, tx.Commit(t.Context()))
		fold(0, 2)
		require.EqualValues(t, 3+9*5*2+2, status().Paid)
	})
}
