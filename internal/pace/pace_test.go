package pace

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"": 0, "5": 5, "5/s": 5, "0.5/s": 0.5, "30/m": 0.5, "36/h": 0.01} {
		got, err := Parse(text)
		require.NoError(t, err)
		require.InDelta(t, want, got.perSecond, 1e-9, text)
	}
	for _, text := range []string{"5/d", "-1/s", "0", "/s", "s", "1e9", "5/", "NaN", "5/sm"} {
		_, err := Parse(text)
		require.ErrorContains(t, err, "--rate must be a number per second, minute or hour", text)
	}
}

// The first step waits for nothing, and none is made up for when steps take long.
func TestStepsAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, err := Parse("2/s")
		require.NoError(t, err)
		began := time.Now()
		for range 5 {
			require.NoError(t, p.Wait(t.Context()))
		}
		require.Equal(t, 2*time.Second, time.Since(began))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.Wait(ended), context.Canceled)
		var none Pace
		require.NoError(t, none.Wait(t.Context()))
		require.ErrorIs(t, none.Wait(ended), context.Canceled)
	})
}
