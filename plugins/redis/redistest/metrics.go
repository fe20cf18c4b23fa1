package redistest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Metric returns one counter or gauge of m. The name is without its prefix millrace_redis_.
func Metric(t testing.TB, m interface{ Collectors() []prometheus.Collector }, name string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "millrace_redis_"+name {
			if g := f.GetMetric()[0].GetGauge(); g != nil {
				return g.GetValue()
			}
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.FailNow(t, "no metric", name)
	return 0
}
