package reclaim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

func shown(t *testing.T, p *Plugin) []console.Cell {
	t.Helper()
	block, err := p.Console()[0].Panels[0].Load(context.Background(), console.Query{})
	require.NoError(t, err)
	table, _ := block.(console.Table)
	if len(table.Rows) == 0 {
		return nil
	}
	return table.Rows[0]
}

// Case: an instance was killed, and a person wants to know who has its entries.
func TestThePageOfWhatIsTakenOver(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.PresenceTimeout, c.Interval = time.Hour, 90*time.Minute, time.Hour
		reader := &fakeReader{free: 12}
		st := s.stream(t, "1", "me-1-0", reader)
		bad := Stream{Shard: "1", Name: s.prefix + ":bad", Group: "g", Consumer: "me-1-0", Reader: reader, Meta: "{" + s.prefix + ":bad}:meta"}
		require.NoError(t, s.client.Set(t.Context(), bad.Name, "no stream", 0).Err())
		killed := s.hold(t, st, "other-2-0", 13)
		idle := s.hold(t, st, "router-0", 1)
		s.release(t, st, "other-2-0", 2*time.Hour, killed)
		s.release(t, st, "router-0", 2*time.Hour, idle)

		pr := present("other-2")
		pr.unknown = []string{"router"}
		r := newRig(c, "me-1", pr, &fakeTarget{client: s.client, streams: []Stream{st, bad}})
		p := New(redis.New())
		require.Nil(t, shown(t, p), "a command has no service")
		p.service = &service{p: p, r: r.Reclaimer}
		d := r.domains[0]
		require.Nil(t, shown(t, p), "it has not looked yet")

		d.round(t.Context(), false)
		row := shown(t, p)
		require.Equal(t, []any{"domain", int64(2), int64(0), "–", "–"}, []any{row[0].Data, row[2].Data, row[3].Data, row[6].Text, row[7].Text})
		require.WithinDuration(t, time.Now(), d.found.Load().at, time.Minute)
		require.Regexp(t, `^\S+:bad: .*WRONGTYPE`, row[8].Text)
		require.Equal(t, operate.Fail, row[8].Level)

		require.NoError(t, s.client.Del(t.Context(), bad.Name).Err())
		pr.set("other-2", false)
		d.gone["other-2"] = time.Now().Add(-2 * time.Hour)
		d.round(t.Context(), false)
		row = shown(t, p)
		require.Equal(t, []any{int64(12), int64(0), st.Name, "–"}, []any{row[3].Data, row[4].Data, row[7].Text, row[8].Text})
		require.Contains(t, row[6].Text, "other-2 for 2h")
		require.Equal(t, operate.Warn, row[6].Level)

		reader.mu.Lock()
		reader.free = 12
		reader.mu.Unlock()
		require.NoError(t, s.client.XDel(t.Context(), st.Name, killed[12]).Err())
		d.round(t.Context(), true)
		row = shown(t, p)
		require.Equal(t, []any{int64(12), int64(1), int64(1), "–"}, []any{row[3].Data, row[4].Data, row[5].Data, row[7].Text})
		require.Equal(t, operate.Warn, row[5].Level, "entries were deleted unhandled")
	})
}

func TestLongListsOfNamesAreCutOff(t *testing.T) {
	t.Parallel()
	require.Equal(t, "–", some(nil))
	require.Equal(t, "a, b, c", some([]string{"a", "b", "c"}))
	require.Equal(t, "a, b, c and 2 more", some([]string{"a", "b", "c", "d", "e"}))
}
