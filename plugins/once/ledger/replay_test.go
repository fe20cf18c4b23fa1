package ledger

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// fail accepts effects of a group, and has each of them fail with the class.
func fail(t testing.TB, l *Ledger, group, class string, from, to int) {
	t.Helper()
	mustAccept(t, l, records(group, to)[from:]...)
	refuse(t, l, class, to-from)
}

// refuse has everything that is due fail with the class.
func refuse(t testing.TB, l *Ledger, class string, want int) {
	t.Helper()
	var ends []End
	for _, c := range claimAll(t, l, "invoice") {
		e := end(c, rules.Rejected)
		e.Class = class
		ends = append(ends, e)
	}
	require.Len(t, ends, want)
	mustSettle(t, l, ends...)
}

func selection(kind, group string, state rules.State) Selection {
	return Selection{Group: Group{Kind: kind, Name: group}, State: state}
}

// counted returns a selection as it is now, which has want effects.
func counted(t testing.TB, l *Ledger, s Selection, want int) Selection {
	t.Helper()
	s, n, err := l.CountSelected(t.Context(), s)
	require.NoError(t, err)
	require.EqualValues(t, want, n)
	return s
}

func selected(t testing.TB, l *Ledger, s Selection) (all []Selected) {
	t.Helper()
	for one, err := range l.Select(t.Context(), s) {
		require.NoError(t, err)
		all = append(all, one)
	}
	return all
}

// A selection is read page by page, and has each effect that it is about, once.
func TestASelectionHasEachOfItsEffects(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		fail(t, l, "zeta", "rejected", 0, 2)
		fail(t, l, "acme", "rejected", 0, selectChunk+1)
		fail(t, l, "acme", "no_customer", selectChunk+1, selectChunk+4)
		mail := record("acme", 1)
		mail.Kind = "mail"
		mustAccept(t, l, mail)
		mustSettle(t, l, end(claimAll(t, l, "mail")[0], rules.Unclear))

		ofClass := func(s Selection, class string) Selection { s.Class = class; return s }
		kind, acme := selection("invoice", "", rules.Failed), selection("invoice", "acme", rules.Failed)
		for want, s := range map[int]Selection{
			selectChunk + 6: kind, selectChunk + 4: acme, selectChunk + 3: ofClass(kind, "rejected"), selectChunk + 1: ofClass(acme, "rejected"),
			3: ofClass(kind, "no_customer"), 1: selection("mail", "", rules.Unknown), 0: selection("invoice", "acme", rules.Unknown),
		} {
			s = counted(t, l, s, want)
			keys := map[Key]bool{}
			all := selected(t, l, s)
			for _, one := range all {
				keys[one.Key] = true
				require.Equal(t, s.State, one.State)
			}
			require.Len(t, all, want)
			require.Len(t, keys, want)
			require.True(t, slices.IsSortedFunc(all, func(a, b Selected) int {
				return compareKeys(rowKey{1, a.Group, a.ID}, rowKey{1, b.Group, b.ID})
			}))
		}
		one := selected(t, l, counted(t, l, ofClass(acme, "no_customer"), 3))[0]
		require.Equal(t, []any{"no_customer", "said rejected", nil}, []any{one.Class, one.Error, one.Refused})
		require.False(t, one.At.IsZero())

		_, _, err := l.CountSelected(t.Context(), selection("invoice", "", rules.Pending))
		require.ErrorIs(t, err, ErrInvalid)
		for _, err := range l.Select(t.Context(), selection("nothing", "", rules.Failed)) {
			require.ErrorIs(t, err, ErrInvalid)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		times := 0
		for _, err := range l.Select(ended, kind) {
			require.Error(t, err)
			times++
		}
		require.Equal(t, 1, times)
	})
}

// What has changed since it was selected is left out, also when it has failed again.
func TestASelectedEffectIsReplayedOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		fail(t, l, "acme", "rejected", 0, 2)
		of := counted(t, l, selection("invoice", "acme", rules.Failed), 2)
		require.ErrorIs(t, l.ReplaySelected(t.Context(), of, key("acme", 0), By{Who: "ann"}), ErrInvalid)
		require.NoError(t, l.ReplaySelected(t.Context(), of, key("acme", 0), operator))
		require.ErrorIs(t, l.ReplaySelected(t.Context(), of, key("acme", 0), operator), ErrNotSelected, "it waits for its call")
		require.Len(t, selected(t, l, of), 1)
		h.advance(time.Second)
		refuse(t, l, "rejected", 1)
		require.ErrorIs(t, l.ReplaySelected(t.Context(), of, key("acme", 0), operator), ErrNotSelected, "it has failed again")
		require.Len(t, selected(t, l, of), 1)

		again := counted(t, l, selection("invoice", "acme", rules.Failed), 2)
		require.NoError(t, l.ReplaySelected(t.Context(), again, key("acme", 0), operator))
		x := mustExplain(t, l, key("acme", 0))
		require.Len(t, x.Audit, 2)
		require.Equal(t, []string{"replay", "FAILED to PENDING"}, []string{x.Audit[1].Action, x.Audit[1].Detail})
		require.Empty(t, mustExplain(t, l, key("acme", 1)).Audit)
		require.Equal(t, Totals{Accepted: 2, Failed: 1}, mustStatus(t, l, acme).Totals)
	})
}

// Two operators replay the same effects at once, while a worker calls for them in vain.
func TestTwoOperatorsReplayASelection(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		const n = 60
		l := h.open(t)
		fail(t, l, "acme", "rejected", 0, n)
		operators := []*Ledger{h.open(t, as("b")), h.open(t, as("c"))}
		replayed, errs := make([]int, len(operators)), make([]error, len(operators))
		var of []Selection
		for _, o := range operators {
			of = append(of, counted(t, o, selection("invoice", "", rules.Failed), n))
		}
		var work sync.WaitGroup
		for i, o := range operators {
			work.Go(func() {
				for one, err := range o.Select(t.Context(), of[i]) {
					if err == nil {
						err = o.ReplaySelected(t.Context(), of[i], one.Key, operator)
					}
					switch {
					case err == nil:
						replayed[i]++
					case !errors.Is(err, ErrNotSelected):
						errs[i] = err
						return
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { work.Wait(); close(ended) }()
		for calls := true; calls; {
			select {
			case <-ended:
				calls = false
			default:
			}
			for _, c := range claimAll(t, l, "invoice") {
				mustSettle(t, l, end(c, rules.Rejected))
			}
		}
		require.NoError(t, errors.Join(errs...))
		require.Equal(t, n, replayed[0]+replayed[1], "%v", replayed)
		for id := range n {
			require.Len(t, mustExplain(t, l, key("acme", id)).Audit, 1, id)
		}
	})
}

// What a selection says of each effect is what a replay does, in each state of a group and after a late answer.
func TestASelectionSaysWhatAReplayRefuses(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		of := func(kind, group string, id int) Record {
			r := record(group, id)
			r.Kind = kind
			return r
		}
		settle := func(kind string, o rules.Outcome) (first Claimed) {
			claimed := claimAll(t, l, kind)
			for _, c := range claimed {
				mustSettle(t, l, end(c, o))
			}
			return claimed[0]
		}
		for _, group := range []string{"running", "paused", "cancelled"} {
			mustAccept(t, l, of("mail", group, 1))
			settle("mail", rules.Rejected)
			mustAccept(t, l, of("mail", group, 2))
			settle("mail", rules.Unclear)
		}
		mustAccept(t, l, of("mail", "late", 1))
		first := settle("mail", rules.Rejected)
		require.NoError(t, l.Replay(t.Context(), first.Key, operator))
		again := claimAll(t, l, "mail")
		mustSettle(t, l, end(first, rules.Done)) // its answer was late
		mustSettle(t, l, end(again[0], rules.Rejected))
		require.NoError(t, l.Pause(t.Context(), Group{"mail", "paused"}, operator))
		_, err := l.Cancel(t.Context(), Group{"mail", "cancelled"}, operator)
		require.NoError(t, err)

		refusals := map[rules.State]map[string]rules.Refusal{}
		for state, n := range map[rules.State]int{rules.Failed: 4, rules.Unknown: 3} {
			refusals[state] = map[string]rules.Refusal{}
			s := counted(t, l, selection("mail", "", state), n)
			for _, one := range selected(t, l, s) {
				err := l.ReplaySelected(t.Context(), s, one.Key, operator)
				require.Equal(t, one.Refused, err, one.Key.text())
				var refused *RefusedError
				if errors.As(err, &refused) {
					refusals[state][one.Group] = refused.Refusal
				} else {
					require.NoError(t, err)
				}
			}
		}
		require.Equal(t, map[rules.State]map[string]rules.Refusal{
			rules.Failed:  {"cancelled": rules.RefusedGroupCancelled, "late": rules.RefusedNoCall},
			rules.Unknown: {"cancelled": rules.RefusedGroupCancelled, "running": rules.RefusedNoCall, "paused": rules.RefusedNoCall},
		}, refusals)
	})
}
