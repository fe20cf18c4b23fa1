package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Redis has no memory for longer than the grace. Users who wait keep places and streams, and a sale
// goes on. Newcomers get busy or 503. All goes on by itself when there is memory again.
func TestAFullRedisKeepsThePlaces(t *testing.T) {
	restStories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":10,"concurrency":1`)
		ann := s.enter("ann", 0)
		entry := ann.promoted()
		ben := s.enter("ben", 1)
		cid := s.enter("cid", 0)
		cid.stands(1, 2)

		require.NoError(t, s.redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
		// The broker of ann sends the sign of cid again with each of the next ones.
		s.await("a sign of life is refused", func() error {
			if !strings.Contains(s.processes[0].log.String(), "signs of life not sent") {
				return errNotReached
			}
			return nil
		})
		s.buys(0, entry.Token, "session")
		ann.closed("sold")
		dan := s.tab("dan", 1, "")
		require.Equal(t, "unavailable", dan.await("busy", func(received) bool { return true }).Reason)
		status, answer := s.callOnce(http.MethodGet, "eve", 0, "")
		require.Equal(t, http.StatusServiceUnavailable, status, "%+v", answer)
		pause(t, 13*time.Second) // longer than grace and seen_interval
		for _, g := range []*roomGuest{ben, cid} {
			require.Len(t, g.all("connected"), 1, "the stream stays open")
			require.Empty(t, g.all("promoted"))
		}

		require.NoError(t, s.redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
		s.buys(1, ben.promoted().Token, "session")
		s.buys(0, cid.promoted().Token, "session")
		s.buys(1, dan.promoted().Token, "session")
		status, _ = s.call(http.MethodGet, "eve", 0, "")
		require.Equal(t, http.StatusOK, status)
		require.Less(t, ben.all("connected")[0].Index, cid.all("connected")[0].Index)
		for _, g := range []*roomGuest{ben, cid} {
			require.Len(t, g.all("connected"), 1, "it was the same stream")
		}
	})
}
