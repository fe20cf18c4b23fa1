package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A job runs again after a reset. Those that watch it, and those that come back, are told which
// numbers they have to forget, and receive the second run.
func TestWatchersOfAJobThatWasReset(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", nil)
		withoutStates := func(list []string) []string {
			return slices.DeleteFunc(list, func(s string) bool { return strings.HasPrefix(s, "state") })
		}

		r.steps("runs", 1, 3)
		live := newWatch(t, p, p.path(r.domain, "runs")+"/events")
		live.restarts = true
		live.run().wait("3")
		redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "runs") == 1 })
		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, "runs"))
		r.steps("runs", 1, 1) // the same content as in the first run
		r.add(r.event("runs", 2, "done"))
		require.Equal(t, []string{"1", "2", "3", "gap 1-3", "1", "2", "closed done"}, withoutStates(live.ends()))

		r.steps("ended", 1, 1)
		r.add(r.event("ended", 2, "done"))
		first := p.watch(r.domain, "ended", "")
		require.Equal(t, []string{"1", "2", "closed done"}, withoutStates(first.ends()))
		cursor := first.client.LastEventID
		require.NotEmpty(t, cursor)
		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, "ended"))
		redistest.Eventually(t, "the gateway has read of the reset", func() bool {
			d := p.domain(r.domain)
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.jobs["ended"] == nil || d.jobs["ended"].sequence.lives > 0
		})
		back := newWatch(t, p, p.path(r.domain, "ended")+"/events")
		back.client.LastEventID, back.restarts, back.at = cursor, true, 2
		back.run()
		late := p.watch(r.domain, "ended", "")
		redistest.Eventually(t, "it waits for the second run", func() bool { return p.attached(r.domain, "ended") == 2 })
		r.steps("ended", 1, 2)
		r.add(r.event("ended", 3, "done"))
		require.Equal(t, []string{"gap 1-2", "1", "2", "3", "closed done"}, withoutStates(back.ends()))
		require.Equal(t, []string{"1", "2", "3", "closed done"}, withoutStates(late.ends()))
	})
}
