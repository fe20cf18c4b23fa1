package letters

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb/sqldbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onBoth runs the test on SQLite and on PostgreSQL, each with an empty database that may be opened several times.
func onBoth(t *testing.T, test func(t *testing.T, open func() *Store)) {
	t.Helper()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		test(t, func() *Store {
			s, err := Connect(t.Context(), pipeline.NewSecret(dsn), nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			require.NoError(t, s.Migrate(t.Context()))
			return s
		})
	})
}

// died is when the letters of the tests failed.
func died(n int) time.Time { return time.Date(2026, 3, 4, 5, 6, n, 789_000, time.UTC) }

// letterOf returns a letter of a route without a ledger.
func letterOf(n int) Letter {
	return From("", "", "orders-dead", fmt.Sprint("uuid-", n), pipeline.DeadLetter{
		Payload: fmt.Appendf(nil, `{"n":%d}`, n), Key: fmt.Sprint(n), Class: "rejected", Error: fmt.Sprintf("amount %d is too much", n),
		Handler: "orders.take", Origin: fmt.Sprintf("orders/3@%d", n), Attempts: 1, FirstFailedAt: died(n), FailedAt: died(n),
		Metadata: map[string]string{"own": "header"},
	})
}

// payoutLetter returns the n-th letter of a ledger's payout.
func payoutLetter(payout string, n int) Letter {
	l := From(ID("payouts", payout, fmt.Sprint(n)), "payouts", "payouts-dead", "", pipeline.DeadLetter{
		Payload: []byte(payout), Class: "rejected", Error: fmt.Sprintf("refusal %d", n), Handler: "payouts.pay", Origin: "payouts/0@7",
		Attempts: n, FirstFailedAt: died(n), FailedAt: died(n),
	})
	l.Subject, l.Lineage = payout, "payouts/"+payout
	return l
}

// unix is a time in whole seconds.
func unix(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

func mustPut(t *testing.T, s *Store, batch ...Letter) {
	t.Helper()
	require.NoError(t, s.Put(t.Context(), batch...))
}

func mustGet(t *testing.T, s *Store, id string) (Letter, []Action) {
	t.Helper()
	l, actions, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	return l, actions
}

// mustTake takes the turn, always as the same holder.
func mustTake(t *testing.T, s *Store) *Turn {
	t.Helper()
	turn, other, err := s.Take(t.Context(), "the test")
	require.NoError(t, err)
	require.NotNil(t, turn, other)
	return turn
}

func mustReplay(t *testing.T, s *Store, id string, parked bool) Begun {
	t.Helper()
	b, err := mustTake(t, s).Begin(t.Context(), id, By{"ann", "fixed"}, parked)
	require.NoError(t, err)
	require.NoError(t, s.Finish(t.Context(), b, OutcomeReplayed, ""))
	return b
}

// returned is what a chain makes of a replay of l that fails again.
func returned(l Letter, generation, n int) Letter {
	l.Generation = generation
	headers := map[string]string{MetaReplay: l.ReplayHeader()}
	for k, v := range l.Headers {
		headers[k] = v
	}
	return From("", "", l.Topic, l.UUID, pipeline.DeadLetter{
		Payload: l.Payload, Key: l.Key, Class: "rejected", Error: "again", Handler: l.Handler, Origin: fmt.Sprintf("orders/3@%d", 100+n),
		Attempts: 1, FirstFailedAt: died(30 + n), FailedAt: died(30 + n), Metadata: headers,
	})
}
