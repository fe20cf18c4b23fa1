package ledger

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Promotion 1 is locked. Promotion 2 met only a transaction that waited for that lock, which was two
// failures in a row. Once it has succeeded, its items wait with those of promotion 1 no more, and a part
// of promotion 3, which has succeeded too and meets its lock again, takes one short wait of the flusher.
func TestAPromotionThatPassesWaitsWithNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &Ledger{cfg: DefaultConfig(), store: lockStore{}, life: t.Context()}
		locked := map[int64]bool{1: true, 2: true, 3: true}
		var waited time.Duration
		b := newFlusher(l, "test", func(ctx context.Context, part []*batchItem[int, int]) error {
			if !slices.ContainsFunc(part, func(k *batchItem[int, int]) bool { return locked[k.key.Promotion] }) {
				return nil
			}
			wait := time.Second
			if limit, ok := ctx.Value(lockWait{}).(time.Duration); ok {
				wait = limit
			}
			waited += wait
			time.Sleep(wait)
			return errLocked
		})
		items := func(promotions ...int64) []*batchItem[int, int] {
			batch := newBatch[int, int](len(promotions), func(i int) (payouts.Key, int, error) { return key(promotions[i], int64(i)), 0, nil })
			w := &caller{done: make(chan struct{})}
			w.left.Store(int32(len(batch)))
			for _, k := range batch {
				k.caller = w
			}
			return batch
		}
		require.Len(t, b.flush(t.Context(), items(1, 2, 3)), 3, "all have met the lock twice")

		locked = map[int64]bool{1: true}
		require.Len(t, b.flush(t.Context(), items(1, 2, 3)), 3, "none has succeeded")
		b.flushAside(t.Context(), items(1, 2, 3))
		waited = 0
		aside := b.flush(t.Context(), items(1, 2, 2, 3))
		require.Equal(t, int64(1), aside[0].key.Promotion)
		require.Len(t, aside, 1, "the others are finished by the flusher")
		require.Zero(t, waited)

		locked[2], locked[3] = true, true
		require.Len(t, b.flush(t.Context(), items(4, 2, 2, 3)), 3)
		require.Equal(t, minLockWait, waited, "the second of them is not tried after the first")
		require.Len(t, b.flush(t.Context(), items(4, 2)), 1)
		require.Equal(t, minLockWait, waited, "it has met the lock again, and is set aside")

		time.Sleep(lockMemory)
		locked = map[int64]bool{}
		require.Empty(t, b.flush(t.Context(), items(1, 2, 3)))
		require.Empty(t, suspects(b))
	})
}
