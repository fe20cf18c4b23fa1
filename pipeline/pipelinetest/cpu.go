package pipelinetest

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CPU returns the CPU time that the process has used so far. It depends less on the load of the
// machine than the time of a benchmark.
func CPU(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ReportCPU runs a benchmark whose round handles n events, and reports the CPU time of one event.
func ReportCPU(b *testing.B, n int, round func()) {
	b.Helper()
	b.ReportAllocs()
	rounds, begin := 0, CPU(b)
	for b.Loop() {
		round()
		rounds++
	}
	b.ReportMetric(float64(CPU(b)-begin)/float64(rounds*n), "cpu-ns/event")
}
