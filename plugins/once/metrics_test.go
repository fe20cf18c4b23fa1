package once_test

import (
	"fmt"
	"strings"
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

// What a publisher sends again, in conflict, or to a cancelled group is counted by the instance that accepts it.
func TestWhatIsAcceptedIsCounted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(w.Once.Collectors()...)
		counts := func(fresh, known, cancelled, conflict int) {
			t.Helper()
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(`# HELP millrace_once_accepted_total Records and values that this instance has accepted, by kind and result (fresh, known, cancelled, conflict). Those of EnqueueTx are not counted, because only its caller knows whether it commits.
# TYPE millrace_once_accepted_total counter
millrace_once_accepted_total{kind="invoice",result="cancelled"} %d
millrace_once_accepted_total{kind="invoice",result="conflict"} %d
millrace_once_accepted_total{kind="invoice",result="fresh"} %d
millrace_once_accepted_total{kind="invoice",result="known"} %d
`, cancelled, conflict, fresh, known)), "millrace_once_accepted_total"))
		}
		counts(0, 0, 0, 0)
		other := one
		other.Cents++
		_, err := p.effects.Enqueue(t.Context(), one, one, other, invoice{Customer: "zeta", Number: "1"})
		require.NoError(t, err)
		counts(2, 1, 0, 1)
		operator{t, w}.must("once cancel", input(""))
		_, err = p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: "18"})
		require.NoError(t, err)
		counts(2, 1, 1, 1)
	})
}
