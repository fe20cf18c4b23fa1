package money_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// BenchmarkCharge has 64 calls in flight over loopback, to the complete simulator. BenchmarkPost of oncehttp
// compares the client with net/http alone.
func BenchmarkCharge(b *testing.B) {
	for _, home := range []string{"memory", "file"} {
		b.Run(home, func(b *testing.B) {
			cfg := simulator.Config{}
			if home == "file" {
				cfg.JournalPath = b.TempDir() + "/book"
			}
			c := newClient(b, newSim(b, cfg).URL(), nil)
			benchmarkCalls(b, func(key string) error {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute) // the lease
				defer cancel()
				if a := c.Charge(ctx, charge(key)); a.Class != money.Paid {
					return fmt.Errorf("unexpected answer %+v", a)
				}
				return nil
			})
		})
	}
}

func benchmarkCalls(b *testing.B, call func(key string) error) {
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	cpu := cpuTime()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call("POINT:1:" + strconv.FormatInt(n.Add(1), 10)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric((cpuTime()-cpu)*1e6/float64(b.N), "cpu-us/call")
}

// cpuTime returns the CPU seconds of this process.
func cpuTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
