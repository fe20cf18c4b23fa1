package ledger

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// payMany accepts, begins and pays targets 1 to n.
func payMany(t *testing.T, l *Ledger, promotion, n int64) {
	t.Helper()
	acceptMany(t, l, promotion, n)
	var g errgroup.Group
	g.SetLimit(64)
	for target := range n {
		g.Go(func() error {
			b, err := l.Begin(t.Context(), record(promotion, target+1))
			if err != nil {
				return err
			}
			_, err = l.Settle(t.Context(), payouts.CallResult{Key: key(promotion, target+1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "x"}})
			return err
		})
	}
	require.NoError(t, g.Wait())
}

func TestRelayByManyPublishesEachOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t, withResults), h.open(t, withResults, as("b"))}
		payMany(t, ledgers[0], 1, 300)
		var mu sync.Mutex
		seen := map[payouts.Key]int{}
		var g errgroup.Group
		for i := range 6 {
			g.Go(func() error {
				for {
					n, err := ledgers[i%2].Relay(t.Context(), OutboxOutcome, 17, func(_ context.Context, ms []OutboxMessage) error {
						mu.Lock()
						defer mu.Unlock()
						for i, m := range ms {
							seen[m.Key]++
							if i > 0 && ms[i-1].ID >= m.ID {
								return errors.New("not in order")
							}
						}
						return nil
					})
					if err != nil || n == 0 {
						return err
					}
				}
			})
		}
		require.NoError(t, g.Wait())
		require.Len(t, seen, 300)
		for k, n := range seen {
			require.Equal(t, 1, n, k)
		}
	})
}

func TestOneBadRowDelaysNoOtherRow(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, withResults)
		payMany(t, l, 1, 5)
		bad := true
		var got []int64
		publish := func(_ context.Context, ms []OutboxMessage) error {
			for _, m := range ms {
				if m.Key.Target == 3 && bad {
					return errors.New("too large")
				}
			}
			for _, m := range ms {
				got = append(got, m.Key.Target)
			}
			return nil
		}
		n, err := l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.ErrorContains(t, err, "too large")
		require.Equal(t, 4, n)
		h.advance(-time.Minute) // however long the next relay takes to come
		n, err = l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.NoError(t, err)
		require.Zero(t, n, "the bad one waits")
		bad = false
		h.advance(time.Hour)
		n, err = l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []int64{1, 2, 3, 4, 5}, inOrder(got))
	})
}

// A publisher that names the failed rows is not called again for the others.
func TestRelayTrustsAPublisherThatNamesTheRows(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, withResults)
		payMany(t, l, 1, 5)
		var batches [][]int64
		bad := map[int64]bool{2: true, 5: true}
		publish := func(_ context.Context, ms []OutboxMessage) error {
			var targets []int64
			failed := map[int]error{}
			for i, m := range ms {
				targets = append(targets, m.Key.Target)
				if bad[m.Key.Target] {
					failed[i] = errors.New("too large")
				}
			}
			batches = append(batches, targets)
			if len(failed) == 0 {
				return nil
			}
			return &pipeline.PartialError{Failed: failed, Size: len(ms)}
		}
		n, err := l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.ErrorContains(t, err, "2 of 5 not published: too large")
		require.Equal(t, 3, n)
		h.advance(time.Hour)
		n, err = l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.Error(t, err)
		require.Zero(t, n)
		clear(bad)
		h.advance(time.Hour)
		n, err = l.Relay(t.Context(), OutboxOutcome, 10, publish)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		for _, b := range batches {
			slices.Sort(b)
		}
		require.Equal(t, [][]int64{{1, 2, 3, 4, 5}, {2, 5}, {2, 5}}, batches)
	})
}

func TestRelaySurvivesADeadPublisherAndADeadRelay(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, withResults)
		payMany(t, l, 1, 10)
		calls := 0
		_, err := l.Relay(t.Context(), OutboxOutcome, 10, func(context.Context, []OutboxMessage) error { calls++; return errors.New("broker down") })
		require.ErrorContains(t, err, "broker down")
		require.Equal(t, 4, calls, "not every row is tried against a broker that is down")
		h.advance(time.Hour)

		claimed, err := l.claim(t.Context(), OutboxOutcome, 10) // its process crashes
		require.NoError(t, err)
		require.Len(t, claimed, 10)
		require.Empty(t, relayed(t, l, OutboxOutcome))
		h.advance(outboxClaimTime + time.Second)
		require.Len(t, relayed(t, l, OutboxOutcome), 10)
	})
}
