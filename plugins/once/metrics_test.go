package once_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func TestTheOpenLedgerIsMeasured(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		w := oncetest.On(t, dsn)
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(w.Once.Collectors()...)
		series := func(name string) int {
			n, err := testutil.GatherAndCount(reg, "millrace_once_"+name)
			require.NoError(t, err)
			return n
		}
		w.Start(newInvoices(w.Once, once.ByKey, nil))
		require.Equal(t, 2, series("connections_limit"))
		if portable.DialectOf(dsn) == portable.Postgres {
			require.Eventually(t, func() bool { return series("table_bytes") > 0 }, 2*time.Minute, 10*time.Millisecond)
		}
	})
}
