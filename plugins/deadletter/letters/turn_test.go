package letters

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneHasTheTurn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		a, _, err := s.Take(t.Context(), "a")
		require.NoError(t, err)
		require.NotNil(t, a)
		b, other, err := s.Take(t.Context(), "b")
		require.NoError(t, err)
		require.Nil(t, b)
		require.Equal(t, "a", other)
		require.NoError(t, a.Keep(t.Context()))
		require.WithinDuration(t, time.Now().Add(turnLease-turnMargin), a.Until(), 5*time.Second)

		// a has died, and its lease ends.
		_, err = s.exec(t.Context(), s.db, `UPDATE dead_letter_lock SET held_until = $1`, time.Now().Add(-time.Second))
		require.NoError(t, err)
		b, _, err = s.Take(t.Context(), "b")
		require.NoError(t, err)
		require.NotNil(t, b)
		a.renewed = time.Time{} // a was frozen, and wakes up
		require.ErrorIs(t, a.Keep(t.Context()), ErrTurnLost)
		require.NoError(t, a.Release(t.Context()), "what is not its own stays")
		c, other, err := s.Take(t.Context(), "c")
		require.NoError(t, err)
		require.Nil(t, c)
		require.Equal(t, "b", other)
		require.NoError(t, b.Release(t.Context()))
		c, _, err = s.Take(t.Context(), "c")
		require.NoError(t, err)
		require.NotNil(t, c)
	})
}

// Who was frozen, and wakes up after the lease, does nothing any more, whether or not somebody else has the turn.
func TestNothingIsDoneAfterTheTurn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := letterOf(1)
		mustPut(t, s, l)
		lost := func(turn *Turn) {
			_, err := turn.Begin(t.Context(), l.ID, By{"ann", "x"}, false)
			require.ErrorIs(t, err, ErrTurnLost)
			require.ErrorIs(t, turn.Discard(t.Context(), l.ID, By{"ann", "x"}), ErrTurnLost)
			got, actions := mustGet(t, s, l.ID)
			require.Equal(t, Open, got.State)
			require.Empty(t, actions)
		}
		frozen := mustTake(t, s)
		_, err := s.exec(t.Context(), s.db, `UPDATE dead_letter_lock SET held_until = $1`, time.Now().Add(-time.Second))
		require.NoError(t, err)
		lost(frozen)
		next, _, err := s.Take(t.Context(), "the next")
		require.NoError(t, err)
		lost(frozen)
		require.NoError(t, next.Release(t.Context()))
		lost(frozen)
		require.NoError(t, mustTake(t, s).Discard(t.Context(), l.ID, By{"bob", "x"}))
	})
}

// Nobody gets the turn while something is written down in it.
func TestTheTurnIsHeldWhileItIsUsed(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s, other := open(), open()
		turn := mustTake(t, s)
		taken := make(chan error, 1)
		err := turn.update(t.Context(), "try", func(q querier, _ time.Time) error {
			go func() {
				// The lease has ended meanwhile, as far as the next can tell.
				taken <- other.update(context.WithoutCancel(t.Context()), "take", func(q querier, _ time.Time) error {
					_, err := other.exec(t.Context(), q, `UPDATE dead_letter_lock SET holder = 'the next'`)
					return err
				})
			}()
			select {
			case err := <-taken:
				return errors.Join(errors.New("taken"), err)
			case <-time.After(300 * time.Millisecond):
				return nil
			}
		})
		require.NoError(t, err)
		require.NoError(t, <-taken)
	})
}
