package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbersForPeople(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		require.Equal(t, want, Thousands(n))
	}
	require.Equal(t, "1 target", Plural(1, "target"))
	require.Equal(t, "0 targets", Plural(0, "target"))
	require.Equal(t, "2,000 targets", Plural(2000, "target"))
}
