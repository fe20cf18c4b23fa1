package slots_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/slots"
)

// waits starts callers that wait for a slot, one after the other, and returns the numbers of those
// that got one, in that order.
func waits(ctx context.Context, s *slots.Slots, n int) (got chan int, failed chan error) {
	got, failed = make(chan int, n), make(chan error, n)
	for i := range n {
		go func() {
			if err := s.Acquire(ctx); err != nil {
				failed <- err
				return
			}
			got <- i
		}()
		synctest.Wait()
	}
	return got, failed
}

func TestSlotsAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots.New(1)
		got, _ := waits(t.Context(), s, 4)
		require.Equal(t, 0, <-got)
		for i := range 2 {
			require.False(t, s.Free())
			require.Empty(t, got)
			s.Release()
			synctest.Wait()
			require.Equal(t, i+1, <-got)
		}
		s.Resize(2)
		synctest.Wait()
		require.Equal(t, 3, <-got)
		s.Resize(1)
		s.Release()
		require.False(t, s.Free(), "one was too many")
		require.Equal(t, 1, s.Taken())
		s.Release()
		require.True(t, s.Free())
	})
}

func TestAWaitForASlotEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots.New(1)
		require.NoError(t, s.Acquire(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		_, failed := waits(ctx, s, 2)
		cancel()
		require.ErrorIs(t, <-failed, context.Canceled)
		require.ErrorIs(t, <-failed, context.Canceled)
		_, failed = waits(t.Context(), s, 2)
		s.Close()
		s.Close()
		require.ErrorIs(t, <-failed, slots.ErrNoMore)
		require.ErrorIs(t, <-failed, slots.ErrNoMore)
		require.ErrorIs(t, s.Acquire(t.Context()), slots.ErrNoMore)
		s.Release()
		require.NoError(t, s.Acquire(t.Context()), "a free slot is given, also after Close")
		require.Equal(t, 1, s.Taken())
	})
}

func TestNoSlotsAreNoLimit(t *testing.T) {
	s := slots.From(t.Context()).Calls
	require.NoError(t, s.Acquire(t.Context()))
	s.Release()
	s.Resize(1)
	s.Close()
	require.NoError(t, s.Acquire(t.Context()))
	of := slots.OfSource{Calls: slots.New(1), Starts: slots.New(2)}
	require.Equal(t, of, slots.From(slots.WithSource(t.Context(), of)))
}
