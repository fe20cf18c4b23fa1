package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A promotion is to be fed when a source of the feeder may return one of its payouts, when it waits
// for a place, and when its stream is not recorded.
func TestOnlyPromotionsWithWorkAreToBeFed(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, lateRetries, func(_ *Config, o *Options) { o.MaxActive = 1 })
		counting := &countingStore{store: l.store}
		l.store = counting
		toFeed := func() (ids []int64) {
			counting.statements = 0
			work, err := l.ToFeed(t.Context(), grace)
			require.NoError(t, err)
			require.Equal(t, 1, counting.statements)
			for _, u := range work {
				ids = append(ids, u.ID)
			}
			return ids
		}
		promotion := func(id int64) payouts.Promotion { return payouts.Promotion{Type: "POINT", ID: id} }
		retries := func(id int64) {
			b := mustBegin(t, l, record(id, 1))
			mustSettle(t, l, payouts.CallResult{Key: key(id, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Throttled}})
		}
		require.Empty(t, toFeed())
		for id := range int64(7) {
			mustAccept(t, l, record(id+1, 1))
		}
		require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7}, toFeed(), "in their streams, which may be lost")
		for id := range int64(7) {
			retries(id + 1)
		}
		require.Empty(t, toFeed(), "all wait for their retries")

		mustAccept(t, l, record(2, 2))
		require.NoError(t, l.NotEnqueued(t.Context(), []payouts.Key{key(2, 2)})[0])
		mustAccept(t, l, record(3, 2))
		mustAccept(t, l, record(4, 2))
		mustBegin(t, l, record(4, 2))
		ok, err := l.Admit(t.Context(), promotion(5))
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.Admit(t.Context(), promotion(6))
		require.NoError(t, err)
		require.False(t, ok)
		require.Equal(t, []int64{2, 3, 4, 5, 6}, toFeed(),
			"in no queue, in the stream, with a worker that may die, active without a recorded stream, without a place")
		ok, err = l.RecordIncarnation(t.Context(), promotion(5), "A")
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, []int64{2, 3, 4, 6}, toFeed())
		require.NoError(t, l.Pause(t.Context(), promotion(2), operator))
		require.Equal(t, []int64{3, 4, 6}, toFeed())
		require.NoError(t, l.Resume(t.Context(), promotion(2), operator))

		work, err := l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Len(t, work, 7)
		h.advance(l.cfg.Retry.Max + time.Second)
		require.NotContains(t, toFeed(), int64(1), "due, but not overdue")
		h.advance(l.cfg.Retry.Max + grace)
		require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7}, toFeed(), "overdue")
		items, err := l.FeedOverdue(t.Context(), promotion(1), grace, 10)
		require.NoError(t, err)
		require.Len(t, items, 1)
	})
}
