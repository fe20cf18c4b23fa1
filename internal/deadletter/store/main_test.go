package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onBoth runs the test on SQLite and on PostgreSQL, each with an empty database that may be opened
// several times.
func onBoth(t *testing.T, test func(t *testing.T, open func() *Store)) {
	t.Helper()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		test(t, func() *Store {
			_, err := Schema(sqldb.Databases{}, setting.NewSecret(dsn), "", nil).Migrate(t.Context())
			require.NoError(t, err)
			s, err := Connect(t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			return s
		})
	})
}

// failedAt is when the n-th message of a test failed.
func failedAt(n int) time.Time { return time.Date(2026, 3, 4, 5, 6, n, 789_000, time.UTC) }

// orderDeadLetter returns a dead letter of a route without a ledger.
func orderDeadLetter(n int) DeadLetter {
	return From("", "", "orders-dead", fmt.Sprint("uuid-", n), pipeline.DeadLetter{
		Payload: fmt.Appendf(nil, `{"n":%d}`, n), Key: fmt.Sprint(n), Class: "rejected", Error: fmt.Sprintf("amount %d is too much", n),
		Handler: "orders.take", SourceKind: "kafka", Source: "orders", Origin: fmt.Sprintf("orders/3@%d", n), Attempts: 1, FirstFailedAt: failedAt(n), FailedAt: failedAt(n),
		Metadata: map[string]string{"own": "header"},
	})
}

// payoutDeadLetter returns the n-th failure of a ledger's payout.
func payoutDeadLetter(payout string, n int) DeadLetter {
	l := From(ID("payouts", payout, fmt.Sprint(n)), "payouts", "payouts-dead", "", pipeline.DeadLetter{
		Payload: []byte(payout), Class: "rejected", Error: fmt.Sprintf("refusal %d", n), Handler: "payouts.pay", SourceKind: "kafka", Source: "payouts", Origin: "payouts/0@7",
		Attempts: n, FirstFailedAt: failedAt(n), FailedAt: failedAt(n),
	})
	l.Subject, l.Lineage = payout, "payouts/"+payout
	return l
}

// unix is a time in whole seconds.
func unix(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

func mustPut(t *testing.T, s *Store, batch ...DeadLetter) {
	t.Helper()
	require.NoError(t, s.Put(t.Context(), batch...))
}

func mustGet(t *testing.T, s *Store, id string) (DeadLetter, []Action) {
	t.Helper()
	l, actions, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	return l, actions
}

func mustReplay(t *testing.T, s *Store, id string, parked bool) Lease {
	t.Helper()
	b, err := s.Begin(t.Context(), id, By{Who: "ann", Why: "fixed"}, parked)
	require.NoError(t, err)
	require.NoError(t, s.Finish(t.Context(), b, Outcome{OutcomeReplayed, ""}))
	return b
}

// failedReplay is the dead letter of a replay of l that failed again.
func failedReplay(l DeadLetter, generation, n int) DeadLetter {
	l.Generation = generation
	headers := map[string]string{pipeline.MetaReplay: l.ReplayHeader()}
	for k, v := range l.Headers {
		headers[k] = v
	}
	return From("", "", l.Topic, l.UUID, pipeline.DeadLetter{
		Payload: l.Payload, Key: l.Key, Class: "rejected", Error: "again", Handler: l.Handler, SourceKind: "kafka", Source: "orders", Origin: fmt.Sprintf("orders/3@%d", 100+n),
		Attempts: 1, FirstFailedAt: failedAt(30 + n), FailedAt: failedAt(30 + n), Metadata: headers,
	})
}

// endLeases lets all leases end.
func endLeases(t *testing.T, s *Store) {
	t.Helper()
	_, err := s.exec(t.Context(), s.db, `UPDATE dead_letters SET held_until = $1 WHERE held_until IS NOT NULL`, time.Now().Add(-time.Second))
	require.NoError(t, err)
}
