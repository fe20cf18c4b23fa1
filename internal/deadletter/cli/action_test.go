package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

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
