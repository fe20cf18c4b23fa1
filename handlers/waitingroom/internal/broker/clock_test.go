package broker_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A signed index restores a place for 45 minutes by the clock of the server, also where that of the process is an hour
// behind or ahead.
func TestASignedIndexLivesByTheClockOfTheServer(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"the process is behind": time.Hour, "the process is ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Mini(t)
			begin := time.Now().Add(ahead).Truncate(time.Second)
			s.Mini.SetTime(begin)
			w := newWorld(t, s)
			p := w.start("broker", "broker")
			w.open(10, 10)
			w.control(room.Change{Verb: room.Hold})
			g := w.guest("u").run().wait("connected WAITING")
			id := g.leave()
			claims, _ := p.tokens.Verify("millrace-room-index:"+w.event, id) // it may have expired by the clock of the process
			require.Equal(t, begin.Add(45*time.Minute).UTC(), claims.Expires.UTC())
			back := func() reply { return w.send("GET", w.path(), "u", "Last-Event-ID", id) }

			s.Mini.SetTime(begin.Add(46 * time.Minute))
			redistest.Eventually(t, "an index that has expired", func() bool {
				w.loses("u") // again, when the sign for the end of the stream has restored the place
				return back().status == http.StatusNoContent
			})
			s.Mini.SetTime(begin.Add(44 * time.Minute))
			restored := back().place(t)
			require.Equal(t, []any{g.idx(), true}, []any{restored.Idx, restored.Resumed})
		})
	}
}
