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

// Each filter selects dead letters, and none can be combined with --all.
func TestEachFilterSelects(t *testing.T) {
	t.Parallel()
	require.Error(t, (&actionFlags{dry: true}).parse(nil, nil), "nothing is selected")
	for i, field := range new(actionFlags).fields() {
		f := actionFlags{dry: true}
		*f.fields()[i].to = "1h"
		require.NoError(t, f.parse(nil, nil), field.Name)
		f.all = true
		require.Error(t, f.parse(nil, nil), field.Name)
	}
}
