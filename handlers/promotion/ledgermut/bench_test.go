package ledger

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCycle runs accept, begin and settle of fresh payouts with 256 callers. cycles/s is what counts.
func BenchmarkCycle(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmarkCycle(b, newSQLiteHome(b).open(b)) })
	b.Run("postgres", func(b *testing.B) { benchmarkCycle(b, newPostgresHome(b).open(b)) })
	b.Run("sqlite-results", func(b *testing.B) { benchmarkCycle(b, newSQLiteHome(b).open(b, withResults)) })
	b.Run("postgres-results", func(b *testing.B) { benchmarkCycle(b, newPostgresHome(b).open(b, withResults)) })
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
				begun, err := l.Begin(b.Context(), r)
				if err != nil || begun.Next != Send {
					b.Error(begun, err)
					return
				}
				if _, err := l.Settle(b.Context(), Result{Key: r.Key, Epoch: begun.Epoch, Outcome: Paid, TransactionKey: "tx"}); err != nil {
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
	c, err := l.Status(b.Context(), Promotion{"POINT", 2})
	require.NoError(b, err)
	require.Equal(b, c.Paid, c.Accepted)
}

// ownCPU is the processor time this process has used, which a busy machine distorts less than the clock.
func ownCPU(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
