package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeadroomUnlessAPersonHasDecided(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	require.Len(t, keepHeadroom(), headroomBytes)
	t.Setenv("GOGC", "50")
	require.Empty(t, keepHeadroom())
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "1GiB")
	require.Empty(t, keepHeadroom())
}
