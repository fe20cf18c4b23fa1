package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A list that goes on after a dead letter has the others once, whatever arrives or is discarded in between.
func TestAListGoesOnAfterADeadLetter(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		for n := range 7 {
			mustPut(t, s, orderDeadLetter(n))
		}
		stored, _ := mustGet(t, s, orderDeadLetter(1).ID)
		f := Filter{States: Waiting(), Fingerprint: stored.Fingerprint}
		page := func(before string) (ids []string, n int64) {
			t.Helper()
			f := f
			f.Before = before
			list, n, err := s.List(t.Context(), f, 3)
			require.NoError(t, err)
			for _, d := range list {
				ids = append(ids, d.Key)
			}
			return ids, n
		}
		ids, n := page("")
		require.Equal(t, []string{"6", "5", "4"}, ids)
		require.EqualValues(t, 7, n)
		cursor := orderDeadLetter(4).ID
		ids, n = page(cursor)
		require.Equal(t, []string{"3", "2", "1"}, ids)
		require.EqualValues(t, 4, n, "those before the cursor")

		mustPut(t, s, orderDeadLetter(8))
		other := orderDeadLetter(9)
		other.Error = "something else"
		mustPut(t, s, other)
		require.NoError(t, s.Discard(t.Context(), cursor, By{Who: "ann", Why: "x"}))
		require.NoError(t, s.Discard(t.Context(), orderDeadLetter(2).ID, By{Who: "ann", Why: "x"}))
		ids, n = page(cursor)
		require.Equal(t, []string{"3", "1", "0"}, ids, "the page stays where it is")
		require.EqualValues(t, 3, n)
		ids, n = page(orderDeadLetter(0).ID)
		require.Empty(t, ids)
		require.Zero(t, n)

		f.Before = "absent"
		_, _, err := s.List(t.Context(), f, 3)
		require.ErrorIs(t, err, ErrNotFound, "an empty list would say that there is none")

		for id, want := range map[string][2]string{
			orderDeadLetter(0).ID: {"", orderDeadLetter(1).ID}, orderDeadLetter(3).ID: {orderDeadLetter(2).ID, cursor},
			orderDeadLetter(8).ID: {orderDeadLetter(6).ID, ""}, other.ID: {"", ""},
		} {
			d, _ := mustGet(t, s, id)
			older, newer, err := s.Neighbors(t.Context(), d)
			require.NoError(t, err)
			require.Equal(t, want, [2]string{older, newer}, "also with those that a person has discarded")
		}
	})
}

// Groups of equal size are on one page each, and a group that grows in between moves no other.
func TestGroupsGoOnAfterAGroup(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		n := 0
		put := func(error string, times int) {
			for range times {
				n++
				d := orderDeadLetter(n)
				d.Error = error
				mustPut(t, s, d)
			}
		}
		for i, times := range []int{2, 1, 2, 3, 1, 2} {
			put(fmt.Sprint("error ", string(rune('a'+i))), times)
		}
		page := func(after Place) (names string, last Place) {
			t.Helper()
			groups, err := s.Groups(t.Context(), Filter{Source: "orders", States: Waiting()}, after, 2)
			require.NoError(t, err)
			for _, g := range groups {
				names += g.Error[len("error "):]
				last = Place{g.Count, g.Example}
			}
			return names, last
		}
		first, place := page(Place{})
		require.Equal(t, "df", first)
		second, next := page(place)
		require.Equal(t, "ca", second)
		put("error f", 5)
		put("error g", 9)
		again, _ := page(place)
		require.Equal(t, second, again)
		third, next := page(next)
		require.Equal(t, "eb", third)
		last, _ := page(next)
		require.Empty(t, last)
		_, err := s.Groups(t.Context(), Filter{}, Place{2, "absent"}, 2)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// Two dead letters are revealed together or not at all.
func TestARevealOfTwoIsRecordedForBoth(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		one, other := orderDeadLetter(1), orderDeadLetter(2)
		mustPut(t, s, one, other)
		by := By{Who: "ann", Why: "ticket 7"}
		require.ErrorIs(t, s.RecordReveal(t.Context(), by, one.ID, "absent"), ErrNotFound)
		_, actions := mustGet(t, s, one.ID)
		require.Empty(t, actions)
		require.NoError(t, s.RecordReveal(t.Context(), by, one.ID, other.ID))
		for _, id := range []string{one.ID, other.ID} {
			_, actions := mustGet(t, s, id)
			require.Len(t, actions, 1)
			require.Equal(t, "reveal", actions[0].Action)
		}
	})
}

// Anybody may write an address with any bytes. They select nothing, and are no fault of the database.
func TestBytesThatNoTextHasSelectNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		mustPut(t, s, orderDeadLetter(1))
		const odd = "a\x00\xff"
		_, _, err := s.Get(t.Context(), odd)
		require.ErrorIs(t, err, ErrNotFound)
		for _, f := range []Filter{{IDs: []string{odd}}, {Source: odd}, {Plugin: odd}, {Handler: odd}, {Class: odd}, {Fingerprint: odd}, {Subject: odd}, {Under: odd}, {Lineage: odd}} {
			n, err := s.Count(t.Context(), f)
			require.NoError(t, err, "%+v", f)
			require.Zero(t, n, "%+v", f)
		}
		for _, place := range []Place{{Count: 1, Example: odd}} {
			_, err := s.Groups(t.Context(), Filter{}, place, 10)
			require.ErrorIs(t, err, ErrNotFound)
		}
		_, err = s.Begin(t.Context(), odd, By{Who: "ann", Why: "x"}, false)
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorIs(t, s.Discard(t.Context(), odd, By{Who: "ann", Why: "x"}), ErrNotFound)
		require.ErrorIs(t, s.RecordReveal(t.Context(), By{Who: "ann", Why: "x"}, odd), ErrNotFound)
	})
}
