package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

const grace = 30 * time.Second

// unqueued returns the payouts that each method of the feeder finds.
func unqueued(t *testing.T, l *Ledger, p payouts.Promotion) (none, tail, overdue []int64) {
	t.Helper()
	targets := func(rows []FeedItem, err error) (found []int64) {
		require.NoError(t, err)
		for _, f := range rows {
			require.Equal(t, string(record(p.ID, f.Target).Payload), string(f.Payload))
			require.Equal(t, "00-1", f.Headers["traceparent"])
			found = append(found, f.Target)
		}
		return found
	}
	none = targets(l.FeedUnqueued(t.Context(), p, 100))
	tail = targets(l.FeedLostEntries(t.Context(), p, grace, 100))
	overdue = targets(l.FeedOverdue(t.Context(), p, grace, 100))
	return none, tail, overdue
}

func TestFeederFindsEachLostPayoutOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		for target := range int64(5) {
			mustAccept(t, l, record(1, target+1))
		}
		require.NoError(t, l.NotEnqueued(t.Context(), []payouts.Key{key(1, 1)})[0]) // full

		mustBegin(t, l, record(1, 2))      // its worker crashes
		b := mustBegin(t, l, record(1, 3)) // its retry record is lost
		require.Equal(t, rules.Retry, mustSettle(t, l, payouts.CallResult{Key: key(1, 3), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Throttled}}).Next)
		b = mustBegin(t, l, record(1, 4))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 4), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done}})

		none, tail, overdue := unqueued(t, l, p)
		require.Equal(t, []int64{1}, none)
		require.Empty(t, tail)
		require.Empty(t, overdue)
		h.advance(grace + 10*time.Second)
		none, tail, overdue = unqueued(t, l, p)
		require.Equal(t, []int64{1}, none)
		require.Equal(t, []int64{5}, tail, "its entry was lost; only told when the stream is drained")
		require.Equal(t, []int64{3, 2}, overdue)

		for _, feed := range []func() ([]FeedItem, error){
			func() ([]FeedItem, error) { return l.FeedUnqueued(t.Context(), p, 100) },
			func() ([]FeedItem, error) { return l.FeedLostEntries(t.Context(), p, grace, 100) },
			func() ([]FeedItem, error) { return l.FeedOverdue(t.Context(), p, grace, 100) },
		} {
			rows, err := feed()
			require.NoError(t, err)
			n, err := l.MarkEnqueued(t.Context(), p, "", rows)
			require.NoError(t, err)
			require.Equal(t, len(rows), n)
		}
		none, tail, overdue = unqueued(t, l, p)
		require.Empty(t, none)
		require.Empty(t, tail)
		require.Empty(t, overdue, "once each")
		h.advance(grace + time.Second)
		_, tail, _ = unqueued(t, l, p)
		require.Equal(t, []int64{1, 2, 3, 5}, inOrder(tail), "and again, when these entries are lost too")
	})
}

// Many payouts wait in the stream before those of a dead worker.
func TestEveryExpiredLeaseIsFound(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, func(c *Config, _ *Options) { c.BatchSize = 2000 })
		p := payouts.Promotion{Type: "POINT", ID: 1}
		const targets = 5000
		acceptMany(t, l, 1, targets)
		dead := []int64{3, targets / 2, targets}
		for _, target := range dead {
			mustBegin(t, l, record(1, target))
		}
		h.advance(time.Minute)
		find := func(limit int) (found []int64) {
			for range 8 { // each page at least twice
				items, err := l.FeedOverdue(t.Context(), p, grace, limit)
				require.NoError(t, err)
				n, err := l.MarkEnqueued(t.Context(), p, "", items)
				require.NoError(t, err)
				require.Len(t, items, n)
				for _, item := range items {
					found = append(found, item.Target)
				}
			}
			return inOrder(found)
		}
		require.Equal(t, dead, find(1))
		require.Empty(t, find(100))
		for _, target := range []int64{4, targets - 1} {
			mustBegin(t, l, record(1, target))
		}
		h.advance(time.Minute)
		require.Equal(t, []int64{4, targets - 1}, find(100), "in the next pass")
	})
}

// The oldest payouts are settled, so that the first page reaches into the one after the last call.
func TestAnExpiredLeaseIsFoundOncePerCall(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t, func(c *Config, _ *Options) { c.BatchSize = 2000 }), h.open(t, as("b"))
		acceptMany(t, a, 1, 4100)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		find := func() (found []int64) {
			items, err := a.FeedOverdue(t.Context(), p, grace, 100)
			require.NoError(t, err)
			for _, item := range items {
				found = append(found, item.Target)
			}
			return inOrder(found)
		}
		require.Empty(t, find())
		mustBegin(t, a, record(1, 2300))
		mustBegin(t, a, record(1, 4000))
		var settled []*batchItem[*payouts.Record, BeginResult]
		for target := int64(1); target <= 600; target++ {
			r := record(1, target)
			settled = append(settled, &batchItem[*payouts.Record, BeginResult]{key: r.Key, req: &r})
		}
		flushTogether(t, a.begins, settled)
		flushTogether(t, a.settles, newBatch[*payouts.CallResult, SettleResult](len(settled), func(i int) (payouts.Key, *payouts.CallResult, error) {
			return settled[i].key, &payouts.CallResult{Key: settled[i].key, CallResult: rules.CallResult{Epoch: settled[i].res.Epoch, Outcome: rules.Done, Receipt: "x"}}, nil
		}))
		h.advance(time.Minute)
		require.Equal(t, []int64{2300, 4000}, find())

		require.Equal(t, []int64{2300}, find(), "of the first page")
		_, kept := a.feedNext.Load(p)
		require.True(t, kept)
		_, err := b.LeaseFeeder(t.Context(), p, time.Minute)
		require.NoError(t, err)
		_, err = a.LeaseFeeder(t.Context(), p, time.Minute)
		require.NoError(t, err)
		_, kept = a.feedNext.Load(p)
		require.False(t, kept, "another instance feeds it")
	})
}

func TestMarkEnqueuedKeepsChangedRows(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		r := record(1, 1)
		setup := func(t *testing.T) []FeedItem {
			mustAccept(t, l, r)
			require.NoError(t, l.NotEnqueued(t.Context(), []payouts.Key{r.Key})[0])
			rows, err := l.FeedUnqueued(t.Context(), p, 10)
			require.NoError(t, err)
			require.Len(t, rows, 1)
			return rows
		}
		rows := setup(t)
		// The entry is read and the promotion paused before the feeder marks it.
		require.NoError(t, l.Pause(t.Context(), p, operator))
		require.Equal(t, "paused", mustBegin(t, l, r).Why)
		require.NoError(t, l.Resume(t.Context(), p, operator))
		n, err := l.MarkEnqueued(t.Context(), p, "", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		none, _, _ := unqueued(t, l, p)
		require.Equal(t, []int64{1}, none)

		// The loss of the stream is recorded before the feeder marks what it had added to it.
		ok, err := l.RecordIncarnation(t.Context(), p, "A")
		require.NoError(t, err)
		require.True(t, ok)
		rows, err = l.FeedUnqueued(t.Context(), p, 10)
		require.NoError(t, err)
		_, _, err = l.RecordStreamLoss(t.Context(), p, "A", "B")
		require.NoError(t, err)
		n, err = l.MarkEnqueued(t.Context(), p, "A", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = l.MarkEnqueued(t.Context(), p, "B", rows)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		// A payout with a newer lease keeps its queue location.
		require.Equal(t, rules.Send, mustBegin(t, l, r).Next)
		n, err = l.MarkEnqueued(t.Context(), p, "B", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, rules.QueueRetry, mustExplain(t, l, r.Key).Queue)
	})
}

func TestLostStreamIsRefilled(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		acceptMany(t, l, 1, 300)
		acceptMany(t, l, 2, 5)
		b := mustBegin(t, l, record(1, 1))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done}})
		mustBegin(t, l, record(1, 2))

		n, resolved, err := l.RecordStreamLoss(t.Context(), p, "", "B")
		require.NoError(t, err)
		require.Zero(t, n, "nothing on record: adopted, not lost")
		require.False(t, resolved)
		ok, err := l.RecordIncarnation(t.Context(), p, "A")
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.RecordIncarnation(t.Context(), p, "B")
		require.NoError(t, err)
		require.False(t, ok, "another one is on record")
		n, resolved, err = l.RecordStreamLoss(t.Context(), p, "A", "B")
		require.NoError(t, err)
		require.Equal(t, int64(298), n)
		require.True(t, resolved)
		n, resolved, err = l.RecordStreamLoss(t.Context(), p, "A", "C")
		require.NoError(t, err)
		require.Zero(t, n, "resolved once")
		require.False(t, resolved)
		token, err := l.Incarnation(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, "B", token)
		c, err := l.Status(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, []int64{298, 0, 1}, []int64{c.InNoQueue, c.InStream, c.InRetry})
		other, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 2})
		require.NoError(t, err)
		require.Equal(t, int64(5), other.InStream)
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.NoError(t, l.Deactivate(t.Context(), p))
		token, err = l.Incarnation(t.Context(), p)
		require.NoError(t, err)
		require.Empty(t, token, "off the active set nothing is on record")
	})
}

func TestUnfinishedAndWaitTimes(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		work, err := l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Empty(t, work)
		for p := range int64(6) {
			mustAccept(t, l, record(p+1, 1))
		}
		voucher := record(3, 1)
		voucher.Type = "VOUCHER"
		mustAccept(t, l, voucher)
		require.NoError(t, l.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: 2}, operator))
		b := mustBegin(t, l, record(4, 1))
		mustSettle(t, l, payouts.CallResult{Key: key(4, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done}})
		require.NoError(t, l.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 5}, 1000))
		_, err = l.Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 6}, operator)
		require.NoError(t, err)

		work, err = l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Equal(t, []UnfinishedPromotion{
			{Promotion: payouts.Promotion{Type: "POINT", ID: 1}, State: rules.GroupRunning},
			{Promotion: payouts.Promotion{Type: "POINT", ID: 3}, State: rules.GroupRunning},
			{Promotion: payouts.Promotion{Type: "POINT", ID: 5}, State: rules.GroupRunning, Active: true, TotalCount: 1000},
			{Promotion: payouts.Promotion{Type: "VOUCHER", ID: 3}, State: rules.GroupRunning},
		}, work)
		h.advance(time.Minute)
		waiting, err := l.WaitTimes(t.Context())
		require.NoError(t, err)
		require.Len(t, waiting, 4)
		require.GreaterOrEqual(t, waiting[0].OldestUnpaid, time.Minute)
		require.GreaterOrEqual(t, waiting[0].Overdue, time.Minute)
	})
}

func TestOneFeederAtATime(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		p := payouts.Promotion{Type: "POINT", ID: 1}
		lease := func(l *Ledger, want bool) {
			t.Helper()
			got, err := l.LeaseFeeder(t.Context(), p, 10*time.Second)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		lease(a, true)
		lease(b, false)
		lease(a, true)
		h.advance(11 * time.Second)
		lease(b, true)
		lease(a, false)
		require.NoError(t, a.ReleaseFeeder(t.Context()), "only one's own")
		lease(a, false)
		require.NoError(t, b.ReleaseFeeder(t.Context()))
		lease(a, true)
	})
}

func TestActivations(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		active := func() []ActiveStream {
			a, err := l.Active(t.Context(), "POINT")
			require.NoError(t, err)
			return a
		}
		require.Empty(t, active())
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.NoError(t, l.Started(t.Context(), p, 700))
		require.NoError(t, l.Started(t.Context(), p, 0), "twice")
		require.NoError(t, l.Pause(t.Context(), p, operator), "before the first record")
		require.Equal(t, []ActiveStream{{Promotion: p, TotalCount: 700, Paused: true}}, active())
		require.NoError(t, l.Resume(t.Context(), p, operator))
		require.NoError(t, l.Deactivate(t.Context(), p))
		require.Empty(t, active())
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.Equal(t, []ActiveStream{{Promotion: p, TotalCount: 700}}, active())
		require.ErrorIs(t, l.Started(t.Context(), p, -1), rules.ErrInvalid)
	})
}

func TestPayoutsAreReadInPages(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		acceptMany(t, l, 1, payoutPage*2+1)
		acceptMany(t, l, 2, 1)
		last := int64(0)
		require.NoError(t, l.EachPayout(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, func(e Payout) error {
			require.Equal(t, last+1, e.Target)
			require.Equal(t, string(record(1, e.Target).Payload), string(e.Request))
			last = e.Target
			return nil
		}))
		require.Equal(t, int64(payoutPage*2+1), last)
		require.ErrorIs(t, l.EachPayout(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, func(Payout) error { return ErrClosed }), ErrClosed)
	})
}
