package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// The id of an entry is a time only if Redis gave it. A producer may give ids of its own.
func TestDelaysOfIdsThatAreNoTime(t *testing.T) {
	t.Parallel()
	d := &domain{name: "scan"}
	d.g = &Gateway{metrics: newMetrics([]*domain{d})}
	now := time.Unix(1_763_900_000, 0)
	for _, added := range []time.Time{
		now.Add(-2 * time.Second), now.Add(time.Second), // the clock of Redis is ahead
		time.UnixMilli(1), time.UnixMilli(now.UnixMicro()), time.UnixMilli(1<<63 - 1), {},
	} {
		d.observe(outgoing{kind: numbered, item: item{added: added}}, now)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(d.g.metrics.delay)
	families, err := registry.Gather()
	require.NoError(t, err)
	h := families[0].GetMetric()[0].GetHistogram()
	require.EqualValues(t, 2, h.GetSampleCount())
	require.InDelta(t, 2, h.GetSampleSum(), 1e-9)
}
