package once_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// An instance that is stopped while its claim is committed, and has not heard of that, calls for what it has claimed.
// Otherwise an effect that nobody has called for would count as perhaps done.
func TestADrainLeavesNoClaimWithoutACall(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	dsn := sqldbtest.Schema(t)
	direct, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close(context.Background()) })
	at, err := url.Parse(dsn)
	require.NoError(t, err)
	way := redistest.NewProxy(t, at.Host)
	at.Host = way.Addr()
	start := func(dsn string) (p *invoices, stop func() error) {
		w := oncetest.On(t, dsn)
		p = newInvoices(w.Once, once.Never, nil)
		return p, w.StartUntil(p)
	}
	_, stop := start(dsn) // it creates the tables
	require.NoError(t, stop())

	way.SetDelay(50 * time.Millisecond)
	all := []invoice{{Customer: "acme", Number: "1"}, {Customer: "acme", Number: "2"}}
	for _, one := range all {
		p, stop := start(at.String())
		_, err = p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			var claimed int
			require.NoError(t, direct.QueryRow(t.Context(), "SELECT count(*) FROM once_effects WHERE id = $1 AND lease_until IS NOT NULL", one.Number).Scan(&claimed))
			return claimed == 1
		}, 2*time.Minute, time.Millisecond, "it is claimed")
		require.NoError(t, stop())
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
	}
	p, stop := start(dsn)
	for _, one := range all {
		require.Equal(t, rules.Success, state(t, p, one), "nothing went wrong but the stop")
	}
	require.NoError(t, stop())
}
