package store

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A route waits for its dead letter to be stored, so pages that are slow leave it a connection.
func TestSlowPagesDoNotDelayARoute(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		release := make(chan struct{})
		var pages sync.WaitGroup
		for range 10 {
			pages.Go(func() {
				if err := s.read(t.Context(), func(*sql.Rows) error { <-release; return nil }, `SELECT 1`); err != nil {
					t.Error(err)
				}
			})
		}
		defer pages.Wait()
		defer close(release)
		require.Eventually(t, func() bool { return len(s.readers) == cap(s.readers) && s.db.Stats().InUse == cap(s.readers) }, time.Minute, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, s.Put(ctx, orderDeadLetter(1)))
		lease, err := s.Begin(ctx, orderDeadLetter(1).ID, By{Who: "ann", Why: "x"}, false)
		require.NoError(t, err)
		require.NoError(t, s.Finish(ctx, lease, Outcome{Result: OutcomeReplayed}))

		late, stop := context.WithCancel(t.Context())
		stop()
		_, err = s.Count(late, Filter{})
		require.ErrorIs(t, err, context.Canceled, "a page that nobody waits for any more")
	})
}
