package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// join is what a user of a join storm was answered.
type join struct {
	index           int64
	asked, answered time.Time // the first request, and the first answer
}

// joinStorm enters the users of another event as fast as the brokers answer. Each enters at both
// brokers. The users of the crowd keep their places meanwhile. Their grace is longer than the
// storm, because a small machine answers them late.
func (r *roomRun) joinStorm() {
	const event, users, callers = "storm", 4000, 300
	out, err := r.command("room", "open", event, "--capacity", "10", "--concurrency", "0", "--why", "test")
	require.NoError(r.t, err, "%s", out)
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	enter := func(user string, broker int) (index int64, err error) {
		q, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, r.brokers[broker].url+"/events/"+event+"/tickets/waiting", nil)
		if err != nil {
			return 0, err
		}
		q.Header = http.Header{userHeader: {user}, "Accept": {"application/json"}}
		response, err := client.Do(q)
		if err != nil {
			return 0, err
		}
		defer func() { _ = response.Body.Close() }()
		var place struct {
			Index int64 `json:"idx"`
		}
		if response.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("%s: %s", user, response.Status)
		}
		err = json.NewDecoder(response.Body).Decode(&place)
		return place.Index, err
	}
	joins, refused := make([]join, users), 0
	var mu sync.Mutex
	var calls errgroup.Group
	calls.SetLimit(callers)
	began := time.Now()
	for i := range 2 * users {
		user, broker := i/2, i%2
		calls.Go(func() error {
			asked := time.Now()
			index, err := enter(fmt.Sprint("stormy-", user), broker)
			for ; err != nil; index, err = enter(fmt.Sprint("stormy-", user), broker) {
				if time.Since(asked) > 2*time.Minute {
					return err
				}
				mu.Lock()
				refused++
				mu.Unlock()
				pause(r.t, 100*time.Millisecond)
			}
			answered := time.Now()
			mu.Lock()
			defer mu.Unlock()
			j := &joins[user]
			if j.index != 0 && j.index != index {
				return fmt.Errorf("user %d has the places %d and %d", user, j.index, index)
			}
			if j.index == 0 {
				*j = join{index, asked, answered}
			}
			if asked.Before(j.asked) {
				j.asked = asked
			}
			return nil
		})
	}
	require.NoError(r.t, calls.Wait(), "%s", r.logs())
	r.note(fmt.Sprintf("%d users have entered twice in %s, and %d requests were repeated", users, time.Since(began), refused))
	require.NoError(r.t, inOrder(joins))
	require.EqualValues(r.t, users, r.redis.ZCard(r.t.Context(), "WAITING:{"+event+"}").Val())
	out, err = r.command("room", "close", event, "--why", "test")
	require.NoError(r.t, err, "%s", out)
}

// inOrder returns an error if two users have one index, or a user who was answered before another
// one sent a request is behind.
func inOrder(joins []join) error {
	behind := slices.Clone(joins)
	slices.SortFunc(behind, func(a, b join) int { return cmp.Compare(b.index, a.index) })
	first := time.Time{} // answer to a user who is further behind
	for i, j := range behind {
		if i > 0 && j.index == behind[i-1].index {
			return fmt.Errorf("two users have the index %d", j.index)
		}
		if i > 0 && first.Before(j.asked) {
			return errors.New("a user overtook one who had a place before")
		}
		if i == 0 || j.answered.Before(first) {
			first = j.answered
		}
	}
	return nil
}

func TestTheOrderOfAStormIsChecked(t *testing.T) {
	t.Parallel()
	at := func(n int) time.Time { return time.UnixMilli(int64(n)) }
	for name, c := range map[string]struct {
		joins []join
		ok    bool
	}{
		"in order":                     {[]join{{1, at(0), at(1)}, {2, at(2), at(3)}, {3, at(4), at(5)}}, true},
		"at the same time":             {[]join{{2, at(0), at(5)}, {1, at(4), at(6)}}, true},
		"the second is first":          {[]join{{2, at(0), at(1)}, {1, at(2), at(3)}}, false},
		"the first is behind two more": {[]join{{3, at(0), at(1)}, {2, at(0), at(9)}, {1, at(2), at(3)}}, false},
		"one index twice":              {[]join{{1, at(0), at(9)}, {1, at(0), at(9)}}, false},
	} {
		require.Equal(t, c.ok, inOrder(c.joins) == nil, name)
	}
}
