package answered_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/answered"
)

func TestOnlyOtherKeysCount(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	var a answered.Keys[string]
	require.False(t, a.OthersSince("a", at(-1)), "nothing was answered")
	a.Note("a", at(1))
	a.Note("a", at(5))
	require.False(t, a.OthersSince("a", at(0)), "only the key itself was answered")
	require.True(t, a.OthersSince("b", at(4)))
	require.False(t, a.OthersSince("b", at(5)), "not after that moment")
	a.Note("b", at(6))
	require.True(t, a.OthersSince("a", at(5)))
	require.True(t, a.OthersSince("b", at(4)), "a is still known")
	require.False(t, a.OthersSince("b", at(5)))
	require.True(t, a.OthersSince("c", at(5)))
}
