package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Another claim may release the bytes for which a reader waits.
func TestAReleaseWakesReaders(t *testing.T) {
	t.Parallel()
	b := newBudget(10)
	taken, ok := b.take(20)
	require.True(t, ok)
	require.EqualValues(t, 10, taken, "at most all there are")
	b.release(1)
	freed := b.wait()
	require.True(t, b.wanted())
	_, ok = b.take(2)
	require.False(t, ok)
	b.release(1)
	select {
	case <-freed:
	default:
		t.Fatal("not woken")
	}
	b.done()
	require.False(t, b.wanted())
	_, ok = b.take(2)
	require.True(t, ok)
}
