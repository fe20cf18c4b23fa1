package pipeline_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func TestWaitsTogether(t *testing.T) {
	t.Parallel()
	b := pipeline.Backoff{First: time.Second, Max: 5 * time.Second}
	for n, want := range map[int]time.Duration{0: 0, 1: time.Second, 3: 7 * time.Second, 4: 12 * time.Second, 6: 22 * time.Second} {
		require.Equal(t, want, b.Sum(n), n)
	}
	require.Equal(t, pipeline.Backoff{First: time.Second, Max: 30 * time.Second}.Sum(7), pipeline.Backoff{}.Sum(7))
	require.Greater(t, b.Sum(math.MaxInt), time.Duration(0), "it is bounded")
}
