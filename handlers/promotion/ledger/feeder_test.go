package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const grace = 30 * time.Second

// hints lists which payouts each way of feeding finds.
func hints(t *testing.T, l *Ledger, p Promotion) (none, tail, overdue []int64) {
	t.Helper()
	targets := func(rows []Feed, err error) (found []int64) {
		require.NoError(t, err)
		for _, f := range rows {
			require.Equal(t, string(record(p.ID, f.Target).Payload), string(f.Payload))
			require.Equal(t, "00-1", f.Headers["traceparent"])
			found = append(found, f.Target)
		}
		return found
	}
	none = targets(l.FeedNone(t.Context(), p, 100))
	tail = targets(l.FeedLostTail(t.Context(), p, grace, 100))
	overdue = targets(l.FeedOverdue(t.Context(), p, grace, 100))
	return none, tail, overdue
}

func TestFeederFindsEveryLostHintOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		p := Promotion{"POINT", 1}
		for target := range int64(5) {
			mustAccept(t, l, record(1, target+1))
		}
		require.NoError(t, l.NotEnqueued(t.Context(), key(1, 1))) // full
		mustBegin(t, l, record(1, 2))                             // its worker dies
		b := mustBegin(t, l, record(1, 3))                        // its retry record is lost
		require.Equal(t, Retry, mustSettle(t, l, Result{Key: key(1, 3), Epoch: b.Epoch, Outcome: NotCharged}).Next)
		b = mustBegin(t, l, record(1, 4))
		mustSettle(t, l, Result{Key: key(1, 4), Epoch: b.Epoch, Outcome: Paid})

		none, tail, overdue := hints(t, l, p)
		require.Equal(t, []int64{1}, none)
		require.Empty(t, tail)
		require.Empty(t, overdue)
		h.advance(grace + 10*time.Second)
		none, tail, overdue = hints(t, l, p)
		require.Equal(t, []int64{1}, none)
		require.Equal(t, []int64{5}, tail, "its entry was lost; only told when the stream is drained")
		require.Equal(t, []int64{3, 2}, overdue)

		for _, feed := range []func() ([]Feed, error){
			func() ([]Feed, error) { return l.FeedNone(t.Context(), p, 100) },
			func() ([]Feed, error) { return l.FeedLostTail(t.Context(), p, grace, 100) },
			func() ([]Feed, error) { return l.FeedOverdue(t.Context(), p, grace, 100) },
		} {
			rows, err := feed()
			require.NoError(t, err)
			n, err := l.MarkFed(t.Context(), p, "", rows)
			require.NoError(t, err)
			require.Equal(t, len(rows), n)
		}
		none, tail, overdue = hints(t, l, p)
		require.Empty(t, none)
		require.Empty(t, tail)
		require.Empty(t, overdue, "once each")
		h.advance(grace + time.Second)
		_, tail, _ = hints(t, l, p)
		require.Equal(t, []int64{1, 2, 3, 5}, sorted(tail), "and again, when these entries are lost too")
	})
}

func TestMarkFedLosesNoHint(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		p := Promotion{"POINT", 1}
		r := record(1, 1)
		setup := func(t *testing.T) []Feed {
			mustAccept(t, l, r)
			require.NoError(t, l.NotEnqueued(t.Context(), r.Key))
			rows, err := l.FeedNone(t.Context(), p, 10)
			require.NoError(t, err)
			require.Len(t, rows, 1)
			return rows
		}
		rows := setup(t)
		// The entry is read, and the promotion paused, before the feeder marks it: the entry is used up.
		require.NoError(t, l.Pause(t.Context(), p, ann))
		require.Equal(t, "paused", mustBegin(t, l, r).Why)
		require.NoError(t, l.Resume(t.Context(), p, ann))
		n, err := l.MarkFed(t.Context(), p, "", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		none, _, _ := hints(t, l, p)
		require.Equal(t, []int64{1}, none)

		// The stream is lost, and booked as lost, before the feeder marks what it had added to it.
		ok, err := l.Adopt(t.Context(), p, "A")
		require.NoError(t, err)
		require.True(t, ok)
		rows, err = l.FeedNone(t.Context(), p, 10)
		require.NoError(t, err)
		_, _, err = l.Lost(t.Context(), p, "A", "B")
		require.NoError(t, err)
		n, err = l.MarkFed(t.Context(), p, "A", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = l.MarkFed(t.Context(), p, "B", rows)
		require.NoError(t, err)
		require.Equal(t, 1, n)

		// A payout that was begun meanwhile keeps its lease's hint.
		require.Equal(t, Send, mustBegin(t, l, r).Next)
		n, err = l.MarkFed(t.Context(), p, "B", rows)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, HintRetry, mustExplain(t, l, r.Key).Hint)
	})
}

func TestLostStreamIsRefilled(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		p := Promotion{"POINT", 1}
		acceptMany(t, l, 1, 300)
		acceptMany(t, l, 2, 5)
		b := mustBegin(t, l, record(1, 1))
		mustSettle(t, l, Result{Key: key(1, 1), Epoch: b.Epoch, Outcome: Paid})
		mustBegin(t, l, record(1, 2))

		n, booked, err := l.Lost(t.Context(), p, "", "B")
		require.NoError(t, err)
		require.Zero(t, n, "nothing on record: adopted, not lost")
		require.False(t, booked)
		ok, err := l.Adopt(t.Context(), p, "A")
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = l.Adopt(t.Context(), p, "B")
		require.NoError(t, err)
		require.False(t, ok, "another one is on record")
		n, booked, err = l.Lost(t.Context(), p, "A", "B")
		require.NoError(t, err)
		require.Equal(t, int64(298), n)
		require.True(t, booked)
		n, booked, err = l.Lost(t.Context(), p, "A", "C")
		require.NoError(t, err)
		require.Zero(t, n, "booked once")
		require.False(t, booked)
		token, err := l.Incarnation(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, "B", token)
		c, err := l.Status(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, []int64{298, 0, 1}, []int64{c.NoHint, c.InStream, c.InRetry})
		other, err := l.Status(t.Context(), Promotion{"POINT", 2})
		require.NoError(t, err)
		require.Equal(t, int64(5), other.InStream)
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.NoError(t, l.Deactivate(t.Context(), p))
		token, err = l.Incarnation(t.Context(), p)
		require.NoError(t, err)
		require.Empty(t, token, "off the active set nothing is on record")
	})
}

func TestUnfinishedAndWaiting(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
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
		require.NoError(t, l.Pause(t.Context(), Promotion{"POINT", 2}, ann))
		b := mustBegin(t, l, record(4, 1))
		mustSettle(t, l, Result{Key: key(4, 1), Epoch: b.Epoch, Outcome: Paid})
		require.NoError(t, l.Started(t.Context(), Promotion{"POINT", 5}, 1000))
		_, err = l.Cancel(t.Context(), Promotion{"POINT", 6}, ann)
		require.NoError(t, err)

		work, err = l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Work{
			{Promotion: Promotion{"POINT", 1}, State: PromotionRunning},
			{Promotion: Promotion{"POINT", 3}, State: PromotionRunning},
			{Promotion: Promotion{"POINT", 5}, State: PromotionRunning, Active: true, TotalCount: 1000},
			{Promotion: Promotion{"VOUCHER", 3}, State: PromotionRunning},
		}, work)
		h.advance(time.Minute)
		waiting, err := l.Waiting(t.Context())
		require.NoError(t, err)
		require.Len(t, waiting, 4)
		require.GreaterOrEqual(t, waiting[0].OldestUnpaid, time.Minute)
		require.GreaterOrEqual(t, waiting[0].Overdue, time.Minute)
	})
}

func TestOneFeederAtATime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		a, b := h.open(t), h.open(t, as("b"))
		p := Promotion{"POINT", 1}
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
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		p := Promotion{"POINT", 1}
		active := func() []ActiveStream {
			a, err := l.Active(t.Context(), "POINT")
			require.NoError(t, err)
			return a
		}
		require.Empty(t, active())
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.NoError(t, l.Started(t.Context(), p, 700))
		require.NoError(t, l.Started(t.Context(), p, 0), "twice")
		require.NoError(t, l.Pause(t.Context(), p, ann), "before the first record")
		require.Equal(t, []ActiveStream{{Promotion: p, TotalCount: 700, Paused: true}}, active())
		require.NoError(t, l.Resume(t.Context(), p, ann))
		require.NoError(t, l.Deactivate(t.Context(), p))
		require.Empty(t, active())
		require.NoError(t, l.Activate(t.Context(), p, 0))
		require.Equal(t, []ActiveStream{{Promotion: p, TotalCount: 700}}, active())
		require.ErrorIs(t, l.Started(t.Context(), p, -1), ErrInvalid)
	})
}

func TestBooksAreReadInPages(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *home) {
		l := h.open(t)
		acceptMany(t, l, 1, booksPage*2+1)
		acceptMany(t, l, 2, 1)
		last := int64(0)
		require.NoError(t, l.Books(t.Context(), Promotion{"POINT", 1}, func(e Entry) error {
			require.Equal(t, last+1, e.Target)
			require.Equal(t, string(record(1, e.Target).Payload), string(e.Request))
			last = e.Target
			return nil
		}))
		require.Equal(t, int64(booksPage*2+1), last)
		require.ErrorIs(t, l.Books(t.Context(), Promotion{"POINT", 1}, func(Entry) error { return ErrClosed }), ErrClosed)
	})
}
