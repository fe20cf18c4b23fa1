package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// BenchmarkLedger has four callers with batches of one size. They accept all payouts, and then
// begin and settle them. The figures to compare are the processor times per payout of this process
// and of the PostgreSQL server, which may also serve others.
func BenchmarkLedger(b *testing.B) {
	for name, h := range map[string]func(testing.TB) *testDB{"sqlite": newSQLiteDB, "postgres": newPostgresDB} {
		for _, size := range []int64{1, 32, 100} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) { benchmarkLedger(b, h(b).open(b), size) })
			b.Run(fmt.Sprintf("%s-results/%d", name, size), func(b *testing.B) { benchmarkLedger(b, h(b).open(b, withResults), size) })
		}
	}
}

func benchmarkLedger(b *testing.B, l *Ledger, size int64) {
	batches := (int64(b.N) + size - 1) / size
	inBatches(b, l, "accept", batches, size, func(records []payouts.Record) {
		for _, a := range l.Accept(b.Context(), records, AcceptOptions{}) {
			if a.Next != rules.Enqueue {
				b.Error(a)
			}
		}
	})
	inBatches(b, l, "pay", batches, size, func(records []payouts.Record) {
		var wg sync.WaitGroup
		for i := range records {
			wg.Go(func() {
				begun, err := l.Begin(b.Context(), records[i])
				if err != nil {
					b.Error(err)
				}
				res := payouts.CallResult{Key: records[i].Key, CallResult: rules.CallResult{Epoch: begun.Epoch, Outcome: rules.Done, Receipt: "tx"}}
				if s, err := l.Settle(b.Context(), res); err != nil || s.State != rules.Success {
					b.Error(begun, s, err)
				}
			})
		}
		wg.Wait()
	})
	c, err := l.Status(b.Context(), payouts.Promotion{Type: "POINT", ID: 1})
	require.NoError(b, err)
	require.Equal(b, c.Accepted, c.Paid)
}

// inBatches runs one phase and reports its figures per payout.
func inBatches(b *testing.B, l *Ledger, phase string, batches, size int64, run func(records []payouts.Record)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	before, began := usageOf(b, l), time.Now()
	for range 4 {
		wg.Go(func() {
			for n := next.Add(1); n <= batches; n = next.Add(1) {
				records := make([]payouts.Record, size)
				for i := range records {
					records[i] = record(1, (n-1)*size+int64(i)+1)
				}
				run(records)
			}
		})
	}
	wg.Wait()
	total := float64(batches * size)
	b.ReportMetric(total/time.Since(began).Seconds(), phase+"/s")
	for unit, after := range usageOf(b, l) {
		b.ReportMetric((after-before[unit])/total, phase+"-"+unit)
	}
}

// usageOf returns what was used so far. It depends less on the load of the machine than a rate.
func usageOf(b *testing.B, l *Ledger) map[string]float64 {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	used := map[string]float64{"cpu-us": float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3}
	s, ok := l.store.(*postgres)
	if !ok {
		return used
	}
	var pid int
	var wal float64
	require.NoError(b, s.cold.QueryRow(b.Context(), "SELECT pg_backend_pid(), pg_current_wal_lsn() - '0/0'").Scan(&pid, &wal))
	used["wal-B"] = wal
	if server := parentOf(pid); server > 1 {
		used["pg-us"] = childrenTicks(server) * 1e4
	}
	return used
}

// parentOf returns 0 for a process that is not on this machine.
func parentOf(pid int) (parent int) {
	var state string
	fields := stat(fmt.Sprint(pid))
	_, _ = fmt.Sscan(fields, &state, &parent)
	return parent
}

// stat returns the fields after the command of /proc/<pid>/stat.
func stat(pid string) string {
	line, _ := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	return string(line)[strings.LastIndexByte(string(line), ')')+1:]
}

// childrenTicks sums the processor time of the running and ended children of a process.
func childrenTicks(server int) (ticks float64) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		f := strings.Fields(stat(filepath.Base(dir)))
		var own, ended [2]float64
		if len(f) < 15 {
			continue
		}
		for i := range own {
			_, _ = fmt.Sscan(f[11+i], &own[i])
			_, _ = fmt.Sscan(f[13+i], &ended[i])
		}
		switch {
		case f[1] == fmt.Sprint(server):
			ticks += own[0] + own[1]
		case filepath.Base(dir) == fmt.Sprint(server):
			ticks += ended[0] + ended[1]
		}
	}
	return ticks
}
