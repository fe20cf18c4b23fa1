package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
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
	for _, a := range (Deps{}).Actions() {
		require.Error(t, a.Validate(operate.Input{}), "nothing is selected")
		for _, field := range new(filterFlags).fields() {
			in := operate.Input{field.Name: {"1h"}}
			require.NoError(t, a.Validate(in), field.Name)
			in["all"] = []string{"true"}
			require.Error(t, a.Validate(in), field.Name)
		}
	}
}
