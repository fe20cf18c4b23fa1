package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// A primary behind sentinels is killed under load, and a replica takes over. With `replicas: 1`
// nothing that was answered is lost.
func TestAWaitingRoomBehindSentinels(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		t.Run(fmt.Sprint("replicas ", replicas), func(t *testing.T) {
			tier.Rest(t, tier.Room, tier.Redis)
			t.Parallel()
			r := newRoomRun(t, roomCase{users: 100, replicas: replicas, loses: replicas == 0, patience: 5 * time.Minute})
			if r.replica == nil {
				r.replica = r.replicaOf(r.redis)
			}
			sentinel := startSentinel(t, "rooms", r.redis)
			next := []*node{r.replica}
			if replicas > 0 { // the next primary needs one, too
				next = append(next, r.replicaOf(r.redis))
				sentinel.shows(sentinel.section("sentinel"), "slaves=2")
			}
			for _, p := range r.processes() {
				p.env = []string{"MILLRACE__PLUGINS__REDIS__ADDRS=" + sentinel.addr, "MILLRACE__PLUGINS__REDIS__MASTER_NAME=rooms"}
				p.launch()
			}
			for _, p := range r.processes() {
				require.NoError(t, p.awaitReady(t.Context()))
			}
			r.arrive()
			r.goesOn("under load")

			r.redis.kill()
			r.await("a replica takes over", func() error {
				primary := slices.IndexFunc(next, func(n *node) bool {
					return strings.Contains(n.Info(t.Context(), "replication").Val(), "role:master")
				})
				if primary < 0 {
					return errNotReached
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				r.redis = next[primary]
				return nil
			})
			for _, p := range r.processes() { // for commands
				p.redis.Retarget(r.redis.addr)
			}
			if r.c.loses {
				r.check.Lost(time.Now().UnixMilli())
			}
			r.goesOn("the room goes on")
			r.verdict()
		})
	}
}
