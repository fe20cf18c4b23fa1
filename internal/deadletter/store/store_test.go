package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
)

func TestADeadLetterIsStoredUnchanged(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := From("", "", "orders-dead", "the-uuid", pipeline.DeadLetter{
			Payload: []byte("{not json\x00\xff"), Key: "k\x00\xfe", Class: "undecodable", Error: "bad \x00 byte \xff", Handler: "orders.take",
			SourceKind: "kafka", Source: "orders", Origin: "orders/3@42", Attempts: 6, FirstFailedAt: failedAt(1), FailedAt: failedAt(2),
			Metadata: map[string]string{"own": "header", "binary": "\x00\xff", "na\xffme": "x", "base64:": "y", "traceparent": "00-1-2-01"},
		})
		mustPut(t, s, l)
		got, actions := mustGet(t, s, l.ID)
		require.Empty(t, actions)
		require.WithinDuration(t, time.Now(), got.Stored, time.Minute)
		require.Equal(t, Open, got.State)
		require.Equal(t, 1, got.Generation)
		require.Equal(t, "orders", got.Plugin, "the first part of the route's name")
		require.Equal(t, l.Payload, got.Payload)
		require.Equal(t, l.Key, got.Key)
		require.Equal(t, l.Headers, got.Headers)
		require.Equal(t, "bad \uFFFD byte \uFFFD", got.Error)
		require.Equal(t, Source{"kafka", "orders", "orders/3@42"}, got.Source)
		require.Equal(t, []any{"undecodable", "orders.take", 6, "the-uuid", "00-1-2-01", "orders-dead"},
			[]any{got.Class, got.Handler, got.Attempts, got.UUID, got.TraceParent, got.Topic})
		require.Equal(t, []time.Time{failedAt(1), failedAt(2)}, []time.Time{got.FirstFailed, got.Failed})

		_, _, err := s.Get(t.Context(), "nothing")
		require.ErrorIs(t, err, ErrNotFound)
	})
}

// A version before migration 6 stores the parts of a position, also while this one runs.
func TestPositionsOfOlderVersions(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		for position, columns := range map[string]string{
			"orders/3@42":        `source = 'orders', source_partition = 3, source_offset = 42`,
			"scan:events:1@17-0": `source = 'scan:events:1', entry_id = '17-0'`,
			"somewhere":          `source = 'somewhere'`,
		} {
			d := orderDeadLetter(1)
			d.ID = position
			mustPut(t, s, d)
			_, err := s.exec(t.Context(), s.db, `UPDATE dead_letters SET position = '', `+columns+` WHERE id = $1`, position)
			require.NoError(t, err)
			got, _ := mustGet(t, s, position)
			require.Equal(t, position, got.Source.String())
		}
	})
}

func TestHeadersOfAnyBytesAreKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		headers := map[string]string{}
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			headers[string(rapid.SliceOf(rapid.Byte()).Draw(t, "name"))] = string(rapid.SliceOf(rapid.Byte()).Draw(t, "value"))
		}
		got, err := decodeHeaders(encodeHeaders(headers))
		require.NoError(t, err)
		require.Equal(t, headers, got)
	})
}

func TestStoringTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l, p := orderDeadLetter(1), payoutDeadLetter("P:1", 1)
		mustPut(t, s, l, p, l)
		mustPut(t, s, p, l)
		n, err := s.Count(t.Context(), Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 2, n)

		// A relay may repeat after a replay or a discard.
		mustReplay(t, s, l.ID, false)
		require.NoError(t, s.Discard(t.Context(), p.ID, By{Who: "ann", Why: "void"}))
		mustPut(t, s, l, p)
		got, _ := mustGet(t, s, l.ID)
		require.Equal(t, Replayed, got.State)
		got, _ = mustGet(t, s, p.ID)
		require.Equal(t, Discarded, got.State)
		require.Equal(t, 1, got.Generation)
	})
}

func TestABatchIsStoredCompletelyOrNotAtAll(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		mustPut(t, s, orderDeadLetter(1))
		bad := orderDeadLetter(1)
		bad.Lineage = "another"
		require.ErrorContains(t, s.Put(t.Context(), orderDeadLetter(2), bad), "of another lineage")
		n, err := s.Count(t.Context(), Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

// A failure of a ledger has the same subject. A failure without a ledger has the header of its
// replay.
func TestADeadLetterWhoseReplayFailsIsParked(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		plain := orderDeadLetter(1)
		for _, c := range []struct {
			name        string
			first, next DeadLetter
			again       DeadLetter // after the second replay
		}{
			{"ledger", payoutDeadLetter("P:1", 1), payoutDeadLetter("P:1", 2), payoutDeadLetter("P:1", 3)},
			{"header", plain, failedReplay(plain, 1, 1), failedReplay(plain, 2, 2)},
		} {
			mustPut(t, s, c.first)
			mustReplay(t, s, c.first.ID, false)
			mustPut(t, s, c.next)
			mustPut(t, s, c.next) // a relay repeats
			got, actions := mustGet(t, s, c.first.ID)
			require.Equal(t, Parked, got.State, c.name)
			require.Equal(t, 2, got.Generation, c.name)
			require.Equal(t, c.next.Error, got.Error, "the newest failure")
			require.Equal(t, c.first.Payload, got.Payload)
			require.Equal(t, c.first.Headers, orNone(got.Headers, c.first.Headers))
			require.Len(t, actions, 2)
			require.Equal(t, Action{1, ActionReplay, "ann", "fixed", actions[0].At, OutcomeReplayed, ""}, actions[0])
			require.Equal(t, Action{1, actionReturn, "", "", actions[1].At, string(Parked), "rejected: " + c.next.Error}, actions[1])

			_, err := s.Begin(t.Context(), c.first.ID, By{Who: "ann", Why: "again"}, false)
			var state *StateError
			require.ErrorAs(t, err, &state)
			require.Equal(t, StateError{ID: c.first.ID, State: Parked, Generation: 2}, *state)
			b := mustReplay(t, s, c.first.ID, true)
			require.Equal(t, 2, b.Generation)

			mustPut(t, s, c.next) // a relay repeats late: that was the first generation
			got, _ = mustGet(t, s, c.first.ID)
			require.Equal(t, Replayed, got.State, c.name)
			mustPut(t, s, c.again)
			got, _ = mustGet(t, s, c.first.ID)
			require.Equal(t, Parked, got.State, c.name)
			require.Equal(t, 3, got.Generation, c.name)
		}
		n, err := s.Count(t.Context(), Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 2, n, "no dead letter is stored twice")
	})
}

// orNone returns nil for an empty map where the original was nil.
func orNone(got, was map[string]string) map[string]string {
	if len(got) == 0 && was == nil {
		return nil
	}
	return got
}

// A replay that was published twice fails twice, once before the replay has finished.
func TestADeadLetterFailsAgainWhileItIsReplayed(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := orderDeadLetter(1)
		mustPut(t, s, l)
		b, err := s.Begin(t.Context(), l.ID, By{Who: "ann", Why: "x"}, false)
		require.NoError(t, err)
		mustPut(t, s, failedReplay(l, 1, 1))
		require.NoError(t, s.Finish(t.Context(), b, Outcome{OutcomeReplayed, ""}))
		mustPut(t, s, failedReplay(l, 1, 2))
		got, actions := mustGet(t, s, l.ID)
		require.Equal(t, Parked, got.State)
		require.Equal(t, 2, got.Generation, "two returns of one generation are one")
		require.Len(t, actions, 3)

		// And a third time, when the next generation has been replayed: that one has not failed.
		mustReplay(t, s, l.ID, true)
		mustPut(t, s, failedReplay(l, 1, 3))
		got, _ = mustGet(t, s, l.ID)
		require.Equal(t, Replayed, got.State)
		require.Equal(t, 2, got.Generation)
	})
}

// While the dead-letter topic is unavailable, the failed replay is stored with each delivery, as
// one event.
func TestARepeatedDeliveryIsOneEvent(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := orderDeadLetter(1)
		mustPut(t, s, l)
		mustReplay(t, s, l.ID, false)
		back := failedReplay(l, 1, 1)
		for n := range 5 {
			back.Failed, back.Error = back.Failed.Add(time.Second), fmt.Sprint("refusal ", n)
			mustPut(t, s, back)
			got, actions := mustGet(t, s, l.ID)
			require.Equal(t, []any{Parked, 2, back.Error, back.Failed}, []any{got.State, got.Generation, got.Error, got.Failed})
			require.Len(t, actions, 2)
			require.Equal(t, "rejected: "+back.Error, actions[1].Detail)
			require.Equal(t, got.Changed, actions[1].At, "the newest one")
		}
		require.NoError(t, s.Discard(t.Context(), l.ID, By{Who: "ann", Why: "void"}))
		back.Failed = back.Failed.Add(time.Second)
		mustPut(t, s, back)
		got, actions := mustGet(t, s, l.ID)
		require.Equal(t, Discarded, got.State, "no replay since")
		require.Len(t, actions, 3)
	})
}

// Only the same message of the same plugin is the same dead letter.
func TestAChangedReplayIsADeadLetterOfItsOwn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := orderDeadLetter(1)
		mustPut(t, s, l)
		mustReplay(t, s, l.ID, false)
		other := failedReplay(l, 1, 1)
		other.Payload = []byte("made of it")
		paid := failedReplay(l, 1, 4) // a ledger has accepted it
		paid.ID, paid.Subject, paid.Lineage = ID("paid"), "O:1", LineageOf("orders", "O:1")
		elsewhere := failedReplay(l, 1, 2)
		elsewhere.Handler = "billing.take"
		unknown := failedReplay(orderDeadLetter(9), 4, 3)
		mustPut(t, s, other, paid, elsewhere, unknown)
		for _, c := range []struct {
			id         string
			state      State
			generation int
		}{{l.ID, Replayed, 1}, {other.ID, Parked, 2}, {paid.ID, Parked, 2}, {elsewhere.ID, Open, 1}, {unknown.ID, Open, 1}} {
			got, _ := mustGet(t, s, c.id)
			require.Equal(t, c.state, got.State)
			require.Equal(t, c.generation, got.Generation)
		}
	})
}

func TestARefusedReplayChangesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		l := orderDeadLetter(1)
		mustPut(t, s, l)
		refuse := func(parked bool, outcome string) DeadLetter {
			b, err := s.Begin(t.Context(), l.ID, By{Who: "ann", Why: "x"}, parked)
			require.NoError(t, err)
			require.NoError(t, s.Finish(t.Context(), b, Outcome{outcome, "no"}))
			got, _ := mustGet(t, s, l.ID)
			return got
		}
		require.Equal(t, Open, refuse(false, OutcomeRefused).State)
		require.Equal(t, Replaying, refuse(false, OutcomeFailed).State)
		mustReplay(t, s, l.ID, false)
		mustPut(t, s, failedReplay(l, 1, 1))
		require.Equal(t, Parked, refuse(true, OutcomeRefused).State)

		require.NoError(t, s.Discard(t.Context(), l.ID, By{Who: "ann", Why: "void"}))
		require.ErrorContains(t, s.Discard(t.Context(), l.ID, By{Who: "ann", Why: "void"}), "is discarded")
		require.ErrorIs(t, s.Discard(t.Context(), "nothing", By{Who: "ann", Why: "void"}), ErrNotFound)
		_, err := s.Begin(t.Context(), "nothing", By{Who: "ann", Why: "void"}, true)
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestFiltersGroupsAndWalks(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		var all []DeadLetter
		for n := range 6 {
			all = append(all, orderDeadLetter(n))
		}
		all[5].Error, all[5].Class = "no such user", "rejected"
		all = append(all, payoutDeadLetter("P:1", 9))
		for _, l := range all {
			mustPut(t, s, l)
		}
		require.NoError(t, s.Discard(t.Context(), all[0].ID, By{Who: "ann", Why: "void"}))
		stored, _ := mustGet(t, s, all[1].ID)

		for name, c := range map[string]struct {
			filter Filter
			want   []int // newest first
		}{
			"all":         {Filter{}, []int{6, 5, 4, 3, 2, 1, 0}},
			"waiting":     {Filter{States: Waiting()}, []int{6, 5, 4, 3, 2, 1}},
			"discarded":   {Filter{States: []State{Discarded}}, []int{0}},
			"plugin":      {Filter{Plugin: "payouts"}, []int{6}},
			"handler":     {Filter{Handler: "orders.take", States: []State{Discarded}}, []int{0}},
			"source":      {Filter{Source: "payouts"}, []int{6}},
			"class":       {Filter{Class: "nothing"}, nil},
			"ids":         {Filter{IDs: []string{all[2].ID, all[4].ID, "nothing"}}, []int{4, 2}},
			"time":        {Filter{Since: failedAt(2), Until: failedAt(4)}, []int{3, 2}},
			"fingerprint": {Filter{Fingerprint: stored.Fingerprint, Source: "orders"}, []int{4, 3, 2, 1, 0}},
		} {
			list, n, err := s.List(t.Context(), c.filter, 10)
			require.NoError(t, err)
			require.EqualValues(t, len(c.want), n, name)
			var ids, want []string
			for _, l := range list {
				require.Nil(t, l.Payload)
				ids = append(ids, l.ID)
			}
			for _, i := range c.want {
				want = append(want, all[i].ID)
			}
			require.Equal(t, want, ids, name)
		}

		groups, err := s.Groups(t.Context(), Filter{Source: "orders", States: Waiting()}, Place{}, 10)
		require.NoError(t, err)
		require.Len(t, groups, 2)
		require.Equal(t, Group{stored.Fingerprint, 4, "rejected", "orders.take", all[4].Error, all[4].ID, failedAt(1), failedAt(4)}, groups[0])
		require.EqualValues(t, 1, groups[1].Count)

		tallies, err := s.Tallies(t.Context())
		require.NoError(t, err)
		require.Equal(t, []Tally{{"rejected", Open, 6}}, tallies)
		targets, err := s.Targets(t.Context(), Filter{})
		require.NoError(t, err)
		require.ElementsMatch(t, []Target{{"orders", "orders.take", "kafka", false}, {"payouts", "payouts.pay", "kafka", true}}, targets)

		var ids []string
		for id, err := range s.Walk(t.Context(), Filter{States: Waiting(), Source: "orders"}) {
			require.NoError(t, err)
			if len(ids) == 0 {
				mustPut(t, s, orderDeadLetter(7)) // too late for this walk
			}
			ids = append(ids, id)
		}
		require.Equal(t, []string{all[1].ID, all[2].ID, all[3].ID, all[4].ID, all[5].ID}, ids)
	})
}

func TestWalkReadsPageByPage(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		batch := make([]DeadLetter, 2*walkPage+1)
		for n := range batch {
			batch[n] = orderDeadLetter(n)
		}
		mustPut(t, s, batch...)
		seen := map[string]bool{}
		for id, err := range s.Walk(t.Context(), Filter{}) {
			require.NoError(t, err)
			require.False(t, seen[id])
			seen[id] = true
		}
		require.Len(t, seen, len(batch))

		ended, end := context.WithCancel(t.Context())
		end()
		for id, err := range s.Walk(ended, Filter{}) {
			require.Empty(t, id)
			require.Error(t, err)
		}
	})
}

func TestFingerprints(t *testing.T) {
	t.Parallel()
	f := newFingerprints()
	for a, b := range map[string]string{
		"amount: must be > 0, got -5":                           "amount: must be > 0, got -0.5",
		"dial tcp 127.0.0.1:9092: refused":                      "dial tcp 10.1.22.7:19092:  refused",
		"no user 0af76519-16cd-43dd-8448-eb211c80319c":          "no user 1AF76519-16cd-43dd-8448-eb211c80319d",
		"no trace 0af7651916cd43dd8448eb211c80319c":             "no trace b7ad6b7169203331",
		"key 01JCZX3V5W8Q4T2N6M7P9R0S1A is taken":               "key 01JCZX3V5W8Q4T2N6M7P9R0S1B is taken",
		"at 0xc0001, 2026-03-04T05:06:07Z, voucher V-2026-A":    "at 0xc0ffee, 2027-04-05T06:07:08Z, voucher V-2027-A",
		"POINT:12345:777: limit_exceeded: the target can't pay": "POINT:1:2: limit_exceeded: the target can't pay",
	} {
		require.Equal(t, f.normalize(a), f.normalize(b))
		require.Equal(t, f.of("c", "h", a), f.of("c", "h", b))
		require.NotEqual(t, f.of("c", "h", a), f.of("d", "h", a))
		require.NotEqual(t, f.of("c", "h", a), f.of("c", "i", a))
	}
	require.NotEqual(t, f.of("c", "h", "timeout"), f.of("c", "h", "refused"))
	require.Equal(t, "the face of a decade", f.normalize("the  face of\na decade"), "words stay")
}

// Several instances migrate and store at the same time: relays of one outbox, and a failed replay.
func TestConcurrentStores(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		var stores []*Store
		for range 4 {
			stores = append(stores, open())
		}
		var group sync.WaitGroup
		errs := make([]error, len(stores))
		for i, s := range stores {
			group.Go(func() {
				for n := range 20 {
					errs[i] = errors.Join(errs[i], s.Put(t.Context(), orderDeadLetter(n), payoutDeadLetter("P:1", n), payoutDeadLetter("P:2", 20-n)))
				}
			})
		}
		group.Wait()
		require.NoError(t, errors.Join(errs...))
		n, err := stores[0].Count(t.Context(), Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 22, n)
	})
}
