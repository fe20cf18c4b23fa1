package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A click arrives twice. The second one does nothing, also when the message has failed again in between, so that the
// dead letter waits as if nobody had replayed it.
func TestAUseChangesADeadLetterOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		d := orderDeadLetter(1)
		mustPut(t, s, d, orderDeadLetter(2))
		click := By{Who: "ann", Why: "fixed", Use: "click-1"}
		first, err := s.Begin(t.Context(), d.ID, click, true)
		require.NoError(t, err)
		_, err = s.Begin(t.Context(), d.ID, click, true)
		var held *HeldError
		require.ErrorAs(t, err, &held, "the first one works on it")
		require.NoError(t, s.Finish(t.Context(), first, Outcome{OutcomeReplayed, ""}))
		mustPut(t, s, failedReplay(d, 1, 1))

		var state *StateError
		_, err = s.Begin(t.Context(), d.ID, click, true)
		require.ErrorAs(t, err, &state)
		require.True(t, state.Used)
		require.ErrorContains(t, err, "was changed by this action before")
		require.ErrorAs(t, s.Discard(t.Context(), d.ID, click), &state)
		require.True(t, state.Used)
		got, _ := mustGet(t, s, d.ID)
		require.Equal(t, []any{Parked, 2}, []any{got.State, got.Generation})

		require.NoError(t, s.Discard(t.Context(), orderDeadLetter(2).ID, click), "another dead letter of the same click")
		second, err := s.Begin(t.Context(), d.ID, By{Who: "ann", Why: "fixed", Use: "click-2"}, true)
		require.NoError(t, err, "another click")
		require.Equal(t, 2, second.Generation)
	})
}

// A use that was interrupted, that failed, or that was refused is continued with the same id. The late end of its
// first attempt changes nothing.
func TestAnInterruptedUseIsContinued(t *testing.T) {
	t.Parallel()
	click := By{Who: "ann", Why: "fixed", Use: "click-1"}
	for name, end := range map[string]func(*testing.T, *Store, Lease){
		"interrupted": func(t *testing.T, s *Store, _ Lease) { endLeases(t, s) },
		"failed": func(t *testing.T, s *Store, l Lease) {
			require.NoError(t, s.Finish(t.Context(), l, Outcome{OutcomeFailed, "no broker"}))
		},
		"refused": func(t *testing.T, s *Store, l Lease) {
			require.NoError(t, s.Finish(t.Context(), l, Outcome{OutcomeRefused, "it is paused"}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, open func() *Store) {
				s := open()
				d := orderDeadLetter(1)
				mustPut(t, s, d)
				first, err := s.Begin(t.Context(), d.ID, click, false)
				require.NoError(t, err)
				end(t, s, first)
				next, err := s.Begin(t.Context(), d.ID, click, false)
				require.NoError(t, err)
				require.Equal(t, name != "refused", next.Resumed)
				require.Equal(t, first.ReplayHeader(), next.ReplayHeader(), "the same generation")
				require.NoError(t, s.Finish(t.Context(), first, Outcome{OutcomeFailed, "late"}))
				got, _ := mustGet(t, s, d.ID)
				require.NotZero(t, got.HeldUntil, "the attempt that continues still has it")
				require.NoError(t, s.Finish(t.Context(), next, Outcome{OutcomeReplayed, ""}))
				_, err = s.Begin(t.Context(), d.ID, click, true)
				var state *StateError
				require.ErrorAs(t, err, &state)
				require.Equal(t, Replayed, state.State)
			})
		})
	}
}
