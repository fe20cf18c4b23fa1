package ledger

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// BenchmarkCycle runs accept, begin and settle of new payouts with 256 callers. The figure to
// compare is cycles/s.
func BenchmarkCycle(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmarkCycle(b, newSQLiteDB(b).open(b)) })
	b.Run("postgres", func(b *testing.B) { benchmarkCycle(b, newPostgresDB(b).open(b)) })
	b.Run("sqlite-results", func(b *testing.B) { benchmarkCycle(b, newSQLiteDB(b).open(b, withResults)) })
	b.Run("postgres-results", func(b *testing.B) { benchmarkCycle(b, newPostgresDB(b).open(b, withResults)) })
}

func benchmarkCycle(b *testing.B, l *Ledger) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	cpu := ownCPU(b)
	b.ResetTimer()
	for range 256 {
		wg.Go(func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				r := record(1+n%2, n)
				if _, err := l.Accept(b.Context(), r, false); err != nil {
					b.Error(err)
					return
				}
				leased, err := l.Begin(b.Context(), r)
				if err != nil || leased.Next != rules.Send {
					b.Error(leased, err)
					return
				}
				if _, err := l.Settle(b.Context(), rules.CallResult{Key: r.Key, Epoch: leased.Epoch, Outcome: rules.Paid, TransactionKey: "tx"}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric(float64((ownCPU(b)-cpu).Microseconds())/float64(b.N), "cpu-us/cycle")
	c, err := l.Status(b.Context(), rules.Promotion{Type: "POINT", ID: 2})
	require.NoError(b, err)
	require.Equal(b, c.Paid, c.Accepted)
}

// ownCPU is the processor time of this process, which depends less on the load of the machine.
func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
