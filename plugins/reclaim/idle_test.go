package reclaim

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A hundred entries in front, which are renewed all the time, do not keep what is behind them
// pending, whichever instance claims.
func TestHotEntriesInFrontDoNotHideIdleOnesBehind(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.Count, c.ClaimBatchSize, c.MinIdle = 7, 3, time.Hour // the readers renew nothing
		readers := []*fakeReader{{free: 1000}, {free: 1000}}
		st := s.stream(t, "1", "a-1-0", readers[0])
		hot := s.hold(t, st, "hot-9-0", 100)
		idle := s.hold(t, st, "slow-9-0", 60)
		s.release(t, st, "slow-9-0", c.MinIdle, idle)
		other := st
		other.Consumer, other.Reader = "b-2-0", readers[1]
		p := present("hot-9", "slow-9", "a-1", "b-2")
		ds := []*domain{
			newDomain(newRig(c, "a-1", p).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}}),
			newDomain(newRig(c, "b-2", p).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{other}}),
		}
		for round := range 10 {
			require.NoError(t, s.client.XClaimJustID(t.Context(), &redis.XClaimArgs{Stream: st.Name, Group: st.Group, Consumer: "hot-9-0", Messages: hot}).Err())
			ds[round%2].round(t.Context(), true)
		}
		got := append(readers[0].got(), readers[1].got()...)
		slices.Sort(got)
		slices.Sort(idle)
		require.Equal(t, idle, got, "each idle entry once, no hot one")
		require.NotEmpty(t, readers[0].got())
		require.NotEmpty(t, readers[1].got(), "both instances claim")
		require.Equal(t, int64(2), readers[0].delivered[readers[0].got()[0]])
	})
}

// More entries than a round claims fail again and again, and are idle again in the next round. They
// do not keep what is behind them pending.
func TestEntriesThatFailDoNotHideTheOnesBehind(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.Count, c.ClaimBatchSize, c.MinIdle = 7, 3, time.Hour
		reader := &fakeReader{free: 1000}
		st := s.stream(t, "1", "me-1-0", reader)
		ids := s.hold(t, st, "slow-9-0", 30)
		s.release(t, st, "slow-9-0", c.MinIdle, ids)
		d := newDomain(newRig(c, "me-1", present("slow-9")).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		for range 5 {
			before := len(reader.got())
			d.round(t.Context(), true)
			claimed := reader.got()[before:]
			require.Len(t, claimed, 7)
			s.release(t, st, st.Consumer, c.MinIdle, claimed)
		}
		require.Equal(t, append(ids, ids[:5]...), reader.got(), "each in its turn, then the first ones again")
	})
}

// A round spends its count on deleted entries too: a stream that has lost a lot takes no longer
// than another one.
func TestDeletedEntriesCountInARound(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		if s.Name == "miniredis" {
			t.Skip("it does not show pending entries that are deleted")
		}
		c := quick()
		c.Count, c.ClaimBatchSize, c.MinIdle = 7, 3, time.Hour
		reader := &fakeReader{free: 1000}
		st := s.stream(t, "1", "me-1-0", reader)
		ids := s.hold(t, st, "slow-9-0", 20)
		s.release(t, st, "slow-9-0", c.MinIdle, ids)
		require.NoError(t, s.client.XDel(t.Context(), st.Name, ids[:10]...).Err())
		r := newRig(c, "me-1", present("slow-9"))
		d := newDomain(r.Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		d.round(t.Context(), true)
		require.Equal(t, ids[:7], r.lost[st.Name])
		require.Empty(t, reader.got())
		d.round(t.Context(), true)
		require.Equal(t, ids[:10], r.lost[st.Name], "each once")
		require.Equal(t, ids[10:14], reader.got())
		for range 2 {
			d.round(t.Context(), true)
		}
		require.Equal(t, ids[:10], r.lost[st.Name], "each once")
		require.Equal(t, ids[10:], reader.got())
	})
}
