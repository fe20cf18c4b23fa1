package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGCBallastUnlessTheEnvironmentTunesTheCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	require.Len(t, gcBallast(), gcBallastBytes)
	t.Setenv("GOGC", "50")
	require.Empty(t, gcBallast())
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "1GiB")
	require.Empty(t, gcBallast())
}
