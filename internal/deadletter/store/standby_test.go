package store

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// A dead letter whose commit was cancelled is visible on its server, and a failover loses it. So
// "stored already" is no answer before the standby has it, and Kafka keeps the record.
func TestAFailoverLosesNoStoredDeadLetter(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		tier.Default(t)
		p := sqldbtest.NewPair(t)
		open := func(dsn string) *Store {
			_, err := Schema(sqldb.Databases{}, setting.NewSecret(dsn), "", nil).Migrate(t.Context())
			require.NoError(t, err)
			s, err := Connect(t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			return s
		}
		first, other, watch := open(p.Primary()), open(p.Primary()), open(p.Primary())
		stored, lost, again := orderDeadLetter(1), orderDeadLetter(2), payoutDeadLetter("p", 1)
		mustPut(t, first, stored, again)
		mustPut(t, other, stored, again)
		p.Freeze()

		put := func(s *Store, l DeadLetter) error {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			return s.Put(ctx, l)
		}
		// visible calls until the primary shows it: on a busy machine a call may end before its commit
		// was sent.
		visible := func(call func(), query string) {
			t.Helper()
			require.Eventually(t, func() bool {
				call()
				found := false
				require.NoError(t, watch.query(t.Context(), watch.db, func(*sql.Rows) error { found = true; return nil }, query))
				return found
			}, 2*time.Minute, 10*time.Millisecond, query)
		}
		visible(func() { require.ErrorIs(t, put(first, lost), errUnavailable) }, `SELECT 1 FROM dead_letters WHERE id = '`+lost.ID+`'`)
		failedAgain := payoutDeadLetter("p", 2)
		visible(func() { require.ErrorIs(t, put(first, failedAgain), errUnavailable) }, `SELECT 1 FROM dead_letters WHERE attempts = 2`)
		for _, s := range []*Store{first, other} {
			for _, l := range []DeadLetter{lost, failedAgain, stored} {
				require.ErrorIs(t, put(s, l), errUnavailable, "only this server has it, as far as anybody knows")
			}
		}

		// Somebody cancels the wait on the server, which then answers COMMIT with success.
		ended := make(chan error, 1)
		go func() { ended <- first.Put(t.Context(), orderDeadLetter(3)) }()
		var err error
		require.Eventually(t, func() bool { // a session of an earlier put may still wait
			p.CancelWaits()
			select {
			case err = <-ended:
				return true
			default:
				return false
			}
		}, 2*time.Minute, 10*time.Millisecond)
		require.ErrorIs(t, err, errUnavailable)

		p.Promote()
		after := open(p.Standby())
		mustGet(t, after, stored.ID)
		_, _, err = after.Get(t.Context(), lost.ID)
		require.ErrorIs(t, err, ErrNotFound, "the failover has lost what was not answered, or this test tests nothing")
		mustPut(t, after, lost)
		mustGet(t, after, lost.ID)
	})
}
