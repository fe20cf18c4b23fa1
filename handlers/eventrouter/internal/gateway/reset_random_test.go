package gateway

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Jobs run, end and are reset, while clients of all of them reconnect to two gateways. In the end each
// client has the events that the logs have, and no others.
func TestClientsOfJobsThatAreResetHaveTheEventsOfTheLogs(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	gateways := []*process{r.start("", nil), r.start("", nil)}
	for _, seed := range []uint64{0, 1, 2, 197} {
		rng := rand.New(rand.NewPCG(seed, 5))
		ids := []string{fmt.Sprint("a-", seed), fmt.Sprint("b-", seed), fmt.Sprint("last-", seed)}
		logs := map[string]map[int64]string{}
		add := func(id, stage string) {
			e := r.event(id, int64(len(logs[id])+1), stage)
			logs[id][e.Seq] = e.StreamID
			r.add(e)
		}
		ended := map[string]bool{}
		reset := func(id string) {
			for _, p := range gateways {
				r.readsFeed(p)
			}
			require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, id))
			logs[id], ended[id] = map[int64]string{}, false
		}
		for _, id := range ids {
			logs[id] = map[int64]string{}
		}
		clients := make([]*jobsView, 4)
		for range 60 {
			id := ids[rng.IntN(2)]
			i := rng.IntN(len(clients))
			switch rng.IntN(8) {
			case 0:
				reset(id)
			case 1:
				if !ended[id] {
					add(id, "done")
					ended[id] = true
				}
			case 2, 3:
				if clients[i] == nil || rng.IntN(2) == 0 {
					before := clients[i]
					if before != nil {
						before.leave()
					}
					clients[i] = gateways[rng.IntN(2)].watchJobs(r.domain, before, ids...)
				}
			case 4:
				r.readsFeed(gateways[rng.IntN(2)])
			default:
				if !ended[id] {
					add(id, "step")
				}
			}
		}
		for _, v := range clients { // all come back, and are attached when the last events come
			if v != nil {
				v.leave()
			}
		}
		for _, p := range gateways {
			redistest.Eventually(t, "all have left", func() bool { return p.attached(r.domain, ids[2]) == 0 })
		}
		for i := range clients {
			clients[i] = gateways[i%2].watchJobs(r.domain, clients[i], ids...)
		}
		for _, p := range gateways {
			redistest.Eventually(t, "all are attached", func() bool { return p.attached(r.domain, ids[2]) == 2 })
		}
		for _, id := range ids {
			if ended[id] {
				reset(id)
				add(id, "step")
			}
			add(id, "done")
		}
		for i, v := range clients {
			v.ends()
			require.Equal(t, logs, v.has, "seed %d, client %d: %v", seed, i, v.got)
		}
	}
}
