package redistest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Series is one series of a metric.
type Series struct {
	Labels map[string]string
	Value  float64            // the count of a histogram
	Below  map[float64]uint64 // counts of a histogram, by the upper bound of the bucket
}

// Gather returns the series of a metric, by its full name. A metric without series has none.
func Gather(t testing.TB, name string, collectors ...prometheus.Collector) (list []Series) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collectors...)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			s := Series{Labels: map[string]string{}, Below: map[float64]uint64{}}
			s.Value = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			for _, l := range m.GetLabel() {
				s.Labels[l.GetName()] = l.GetValue()
			}
			for _, b := range m.GetHistogram().GetBucket() {
				s.Below[b.GetUpperBound()] = b.GetCumulativeCount()
			}
			list = append(list, s)
		}
	}
	return list
}

// Metric returns one counter or gauge of m. The name is without its prefix millrace_redis_.
func Metric(t testing.TB, m interface{ Collectors() []prometheus.Collector }, name string) float64 {
	t.Helper()
	list := Gather(t, "millrace_redis_"+name, m.Collectors()...)
	require.NotEmpty(t, list, "no metric %s", name)
	return list[0].Value
}
