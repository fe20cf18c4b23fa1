package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	d := pipeline.Distribution{Count: 100, Sum: 50, Bounds: []float64{0.1, 0.2, 0.5, 1}, AtMost: []uint64{0, 40, 40, 98}}
	for share, want := range map[float64]float64{0.2: 0.15, 0.4: 0.2, 0.5: 0.5 + 0.5*10/58, 0.98: 1} {
		got, beyond := d.Quantile(share)
		require.InDelta(t, want, got, 1e-9, share)
		require.False(t, beyond, share)
	}
	got, beyond := d.Quantile(0.99)
	require.Equal(t, []any{1.0, true}, []any{got, beyond}, "nobody knows how far above the last bound it is")
	require.InDelta(t, 0.5, d.Mean(), 1e-9)

	got, beyond = pipeline.Distribution{}.Quantile(0.5)
	require.Equal(t, []any{0.0, false}, []any{got, beyond})
	require.Zero(t, pipeline.Distribution{}.Mean())
}
