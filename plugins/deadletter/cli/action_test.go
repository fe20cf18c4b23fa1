package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"": 0, "5": 5, "5/s": 5, "0.5/s": 0.5, "30/m": 0.5, "36/h": 0.01} {
		got, err := parseRate(text)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1e-9, text)
	}
	for _, text := range []string{"5/d", "-1/s", "0", "/s", "s", "1e9", "5/", "NaN", "5/sm"} {
		_, err := parseRate(text)
		require.Error(t, err, text)
	}
}
