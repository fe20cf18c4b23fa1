package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// sqlEverything describes every row. Times are compared with other times of the row.
const sqlEverything = `SELECT concat_ws('|', 'payout', type, promotion_id, target_id, summary_id, state, hint, version, epoch, attempts, asks, released, failures,
	interruptions, maybe_charged, asking, no_charge_seen, transaction_key, last_class, last_error, attempt_by, next_attempt_at IS NULL, settled_at IS NULL,
	hint_due = accepted_at, hint_due = lease_until, hint_due = next_attempt_at, lease_until - attempt_started_at, first_sent_at = attempt_started_at,
	key_first_used_at = attempt_started_at, attempt_started_at BETWEEN accepted_at AND clock_timestamp() + $1 * interval '1 microsecond',
	settled_at BETWEEN attempt_started_at AND clock_timestamp() + $1 * interval '1 microsecond') FROM payouts
UNION ALL SELECT concat_ws('|', 'attempt', p.promotion_id, p.target_id, a.epoch, a.late, a.attempt, a.kind, a.instance, a.started_at = p.attempt_started_at,
	a.ended_at = p.settled_at, a.outcome, a.class, a.answer, a.http_status) FROM attempts AS a JOIN payouts AS p ON p.id = a.payout_id
UNION ALL SELECT concat_ws('|', 'summary', promotion_id, summary_id, sum(paid), sum(failed), sum(unknown), sum(cancelled)) FROM promotion_summaries GROUP BY promotion_id, summary_id
UNION ALL SELECT concat_ws('|', 'outbox', o.kind, o.promotion_id, o.target_id, o.class, o.error, o.attempts, o.handler, o.dedupe, encode(o.record_key, 'escape'),
	o.created_at = p.settled_at, CASE kind WHEN 'result' THEN (convert_from(o.payload, 'UTF8')::jsonb - 'settledAt')::text ELSE encode(o.payload, 'escape') END)
	FROM outbox AS o LEFT JOIN payouts AS p USING (type, promotion_id, target_id)
ORDER BY 1`

// One history of batches runs with the ordinary statements, and over the transition function only.
// All rows and results are equal.
func TestOrdinaryStatementsFollowTheTransitionFunction(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		for _, options := range []tune{withResults, unannounced, func(*Config, *Options) {}} {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			// The two runs take different times. What is due is decided by advance alone.
			few := func(c *Config, o *Options) {
				c.MaxRetries, c.Retry, o.Lease = 1, pipeline.Backoff{First: due, Max: due}, due
			}
			one, general := newPostgresDB(t), newPostgresDB(t)
			l := general.open(t, few, options)
			l.begins.flush, l.settles.flush = newFlusher(l, "begin", l.beginBatch).flush, newFlusher(l, "settle", l.settleBatch).flush
			want, wantRows := batchHistory(t, general, l, seed)
			got, gotRows := batchHistory(t, one, one.open(t, few, options), seed)
			for i, line := range append(want, wantRows...) {
				require.Equal(t, line, append(got, gotRows...)[i])
			}
			require.Len(t, gotRows, len(wantRows))
		}
	})
}

// due is the lease and the delay of retries in batchHistory. Less than advance skips at once, and more
// than any run takes.
const due = 4 * time.Hour

// batchHistory runs random batches on a few payouts, and returns all results and rows.
func batchHistory(t *testing.T, h *testDB, l *Ledger, seed uint64) (results, rows []string) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	note := func(a ...any) { results = append(results, fmt.Sprint(a...)) }
	outcomes := []rules.Outcome{rules.Done, rules.Done, rules.Done, rules.Done, rules.Rejected, rules.TryAgain, rules.Unclear, rules.Interrupted, rules.NotDone}
	type call struct {
		key   payouts.Key
		epoch int64
	}
	var calls []call
	for n := range 180 {
		var batch []payouts.Record
		for range 1 + rnd.IntN(12) {
			r := record(int64(1+rnd.IntN(3)), int64(1+rnd.IntN(20+n/2)))
			r.SummaryID = r.Target % 3
			batch = append(batch, r)
		}
		batch = withoutRepeated(batch, func(r payouts.Record) payouts.Key { return r.Key })
		p := payouts.Promotion{Type: "POINT", ID: int64(1 + rnd.IntN(2))}
		switch choice := rnd.IntN(26); {
		case choice < 6:
			for _, a := range l.Accept(t.Context(), batch, AcceptOptions{PayNow: choice == 0}) {
				note(a)
			}
		case choice < 12:
			if choice == 6 {
				batch[0].Payload = []byte(`{"another":1}`)
			}
			for _, k := range l.beginTogether(t, batch) {
				b := k.res
				note(b.Next, b.Epoch, b.Attempt, string(b.Request), b.Lease, b.State, b.Why, k.err)
				if b.Epoch > 0 {
					calls = append(calls, call{k.key, b.Epoch})
				}
			}
		case choice < 16:
			rnd.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
			some := withoutRepeated(calls, func(c call) payouts.Key { return c.key })
			some = some[:rnd.IntN(len(some)+1)]
			settles := newBatch[*payouts.CallResult, SettleResult](len(some), func(i int) (payouts.Key, *payouts.CallResult, error) {
				return some[i].key, &payouts.CallResult{Key: some[i].key, CallResult: rules.CallResult{Epoch: some[i].epoch, Outcome: outcomes[rnd.IntN(len(outcomes))], Receipt: "tx",
					Class: "c", Answer: "an answer", Status: 200 + i, Route: "point"}}, nil
			})
			flushTogether(t, l.settles, settles)
			for _, k := range settles {
				note(k.res.Next, k.res.State, k.res.Stale, k.res.Attempts, k.err)
			}
			if rnd.IntN(3) > 0 { // otherwise they are settled again
				calls = slices.DeleteFunc(calls, func(c call) bool { return slices.Contains(some, c) })
			}
		case choice < 18:
			h.advance(due + time.Hour)
		case choice < 19:
			require.NoError(t, l.Pause(t.Context(), p, operator))
		case choice < 20:
			require.NoError(t, l.Resume(t.Context(), p, operator))
		case choice < 21:
			note(l.NotEnqueued(t.Context(), valuesOf(batch, func(r payouts.Record) payouts.Key { return r.Key })))
		case choice < 22:
			items, err := l.FeedUnqueued(t.Context(), p, 1000)
			require.NoError(t, err)
			note(l.MarkEnqueued(t.Context(), p, "", items))
		case choice < 24:
			note(l.Replay(t.Context(), batch[0].Key, Replay{DeadLetter: fmt.Sprint(n), Generation: 1, Who: "ann", Why: "a test"}))
		case choice < 25:
			note(l.Resolve(t.Context(), batch[0].Key, rules.Resolution{Done: n%2 == 0, Receipt: "tx", Who: "ann", Why: "a test"}))
		case n > 90: // promotion 3 is never paused
			c, err := l.Cancel(t.Context(), payouts.Promotion{Type: "POINT", ID: 3}, operator)
			c.Longest = c.Longest.Round(time.Minute) // the two runs take different times
			note(c, err)
		}
	}
	s := l.store.(*postgres)
	require.NoError(t, pgQuerier{s.cold}.query(t.Context(), func(r scanner) error {
		var row string
		err := r.Scan(&row)
		rows = append(rows, row)
		return err
	}, sqlEverything, s.skewMicros()))
	return results, rows
}

// withoutRepeated keeps the first element of each key. Two in one batch are one change of a row on
// the general path.
func withoutRepeated[T any](all []T, key func(T) payouts.Key) (first []T) {
	seen := map[payouts.Key]bool{}
	for _, x := range all {
		if !seen[key(x)] {
			first = append(first, x)
		}
		seen[key(x)] = true
	}
	return first
}

// The ordinary statements are committed, but a row of their result is not read. Nothing is sent
// twice and nothing is counted twice.
func TestAnErrorAfterTheCommitOfABatch(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		l := newPostgresDB(t).open(t)
		mustAccept(t, l, record(1, 1))
		s, unread := l.store.(ordinaryStore), errors.New("a row is not read")
		r := record(1, 1)
		begins := newFlusher(l, "begin", l.beginBatch)
		begins.ordinary = func(ctx context.Context, batch []*batchItem[*payouts.Record, BeginResult]) error {
			return errors.Join(l.beginOrdinary(ctx, s, batch), unread)
		}
		c := begins.collect(1, 0)
		b, err := c.one(t.Context(), r.Key, &r)
		require.NoError(t, err)
		require.Equal(t, "leased", b.Why)
		c.close()
		settles := newFlusher(l, "settle", l.settleBatch)
		settles.ordinary = func(ctx context.Context, batch []*batchItem[*payouts.CallResult, SettleResult]) error {
			return errors.Join(l.settleOrdinary(ctx, s, batch), unread)
		}
		d := settles.collect(1, 0)
		end, err := d.one(t.Context(), r.Key, &payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done, Receipt: "tx"}})
		require.NoError(t, err)
		require.Equal(t, SettleResult{Next: rules.Ack, State: rules.Success, Attempts: 1}, end)
		d.close()
		x := mustExplain(t, l, r.Key)
		require.Equal(t, 1, x.Attempts)
		status, err := l.Status(t.Context(), r.OfPromotion())
		require.NoError(t, err)
		require.Equal(t, int64(1), status.Paid)
	})
}

// A lease counts from after the wait for the lock of its promotion.
func TestOrdinaryBeginReadsTheClockAfterItsLock(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		mustAccept(t, l, record(1, 1))
		tx, err := h.connect(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE promotions SET state = 'PAUSED'`)
		require.NoError(t, err)
		begun := make(chan BeginResult, 1)
		go func() {
			b, _ := l.Begin(context.Background(), record(1, 1))
			begun <- b
		}()
		require.Eventually(t, func() bool { return waiters(t, conn) > 0 }, 2*time.Minute, time.Millisecond)
		unlocked := l.clock(t)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, rules.Send, (<-begun).Next)
		x := mustExplain(t, l, key(1, 1))
		require.False(t, x.AttemptStartedAt.Before(unlocked))
		require.Equal(t, l.policy.Lease, x.LeaseUntil.Sub(x.AttemptStartedAt))
	})
}
