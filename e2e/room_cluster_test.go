package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
)

// A waiting room on a cluster. The primary with its keys is killed, and the replica takes over. The
// room loses nothing that was answered, and holds the promotion.
func TestAWaitingRoomOnACluster(t *testing.T) {
	tier.Rest(t, tier.Room, tier.Redis)
	t.Parallel()
	for _, program := range []string{"redis-server", "valkey-server"} {
		t.Run(program, func(t *testing.T) {
			primaries, replica := startCluster(t, program)
			config := redis.DefaultClientConfig()
			config.Cluster = true
			for _, p := range primaries {
				config.Addrs = append(config.Addrs, p.addr)
			}
			server := redis.New().Server(&config)
			require.NoError(t, server.Start(t.Context()))
			t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
			options := room.Options{
				PromoteInterval: time.Second, PromoteBatch: 10, TokenTTL: time.Hour, ReadyTTL: time.Hour, Grace: time.Hour,
				SeenInterval: time.Minute, ClearAfter: time.Hour, MaxEvents: 10,
			}
			after := room.New(server, options)
			options.Replicas, options.ReplicaWait = 1, 2*time.Second
			rooms := room.New(server, options)
			const slots = 16384
			event := func(from, to int64) string { // an event whose keys are in these slots
				for i := 0; ; i++ {
					name := fmt.Sprint("event-", i)
					if slot := primaries[0].must("CLUSTER", "KEYSLOT", name).(int64); slot >= from && slot < to {
						return name
					}
				}
			}
			ctx, one := t.Context(), event(2*slots/3+1, slots)
			// A replica that stands still answers too late. The caller repeats the call.
			replicated := func(call func() error) {
				t.Helper()
				err := call()
				for repeats := 0; errors.Is(err, redis.ErrNotReplicated) && repeats < 10; repeats++ {
					err = call()
				}
				require.NoError(t, err)
			}
			replicated(func() error { return rooms.Create(ctx, one) })
			replicated(func() error { return rooms.SetCapacity(ctx, one, 2) })
			for _, user := range []string{"buyer", "next"} {
				replicated(func() error {
					_, err := rooms.Enter(ctx, one, user, "broker", 0)
					return err
				})
			}
			var tick room.Tick
			ticks := func(r *room.Store) func() bool {
				return func() bool {
					got, err := r.Tick(ctx, one)
					if err == nil && got.Ran {
						tick = got
					}
					return err == nil && got.Ran
				}
			}
			require.Eventually(t, ticks(rooms), 2*time.Minute, 100*time.Millisecond)
			require.Equal(t, 2, tick.Promoted)
			var lease string
			replicated(func() error {
				claimed, err := rooms.Claim(ctx, one, "broker", []room.Sign{{User: "buyer"}})
				if err == nil {
					lease = claimed[0].JTI
				}
				return err
			})
			replicated(func() error {
				_, err := rooms.Verify(ctx, one, "buyer", lease, "session")
				return err
			})
			replicated(func() error {
				_, err := rooms.Finish(ctx, one, "buyer", lease, "session", true)
				return err
			})

			other := event(0, slots/3)
			require.NoError(t, rooms.Create(ctx, other))
			_, err := rooms.Leave(ctx, other, "u1", "left")
			require.ErrorIs(t, err, redis.ErrNotReplicated, "that primary has no replica")

			primaries[2].kill()
			replica.shows(replica.section("replication"), "role:master")
			require.Eventually(t, ticks(after), 2*time.Minute, 100*time.Millisecond)
			require.Positive(t, tick.Hold, "the promotion waits after a failover")
			require.EqualValues(t, 1, tick.Table.Sold)
			require.EqualValues(t, 1, tick.Table.Ready)
			_, err = after.Verify(ctx, one, "buyer", lease, "session")
			require.ErrorIs(t, err, room.ErrEnded)
		})
	}
}

// Each primary has an event with a crowd. One is killed in the middle of waiting and promotion. The
// events of the other nodes go on. The users of the lost one keep their places. The processes have
// the rights of the READMEs, and the crowds leave only the audits.
func TestEventsOnSeveralNodesOfACluster(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]int{"a primary is killed and starts again": 0, "a replica takes over": 2} {
		t.Run(name, func(t *testing.T) {
			tier.Rest(t, tier.Room, tier.Redis)
			t.Parallel()
			r := startClusterRun(t)
			r.draws(r.eventOn("drawn", 1))
			probes, none := []string{r.eventOn("probe", lost), r.eventOn("probe", 1)}, int64(0)
			for _, probe := range probes {
				r.control(probe, room.Change{Verb: room.Open, Capacity: &none})
			}
			r.arrive(170)
			for _, e := range r.events {
				e.goesOn("under load")
			}
			victim, others, nodes := r.events[lost], slices.Delete(slices.Clone(r.events), lost, lost+1), slices.Clone(r.primaries)
			lease := victim.holder()
			victim.goesOn("with the holder of a lease")

			r.primaries[lost].kill()
			if nodes[lost] == r.primaries[2] {
				r.replica.shows(r.replica.section("replication"), "role:master")
				nodes[lost] = r.replica
				victim.check.Lost(time.Now().UnixMilli())
			} else {
				require.Equal(t, http.StatusServiceUnavailable, r.enters(probes[0]))
				require.Equal(t, http.StatusOK, r.enters(probes[1]))
				for _, e := range others {
					e.goesOn("while a node is lost")
				}
				for _, p := range r.processes {
					resp, err := http.Get(p.ops + "/readyz")
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					require.Equal(t, http.StatusOK, resp.StatusCode, "%s", p.log)
				}
				for _, e := range others {
					e.verdict()
				}
				others = nil
				r.restart(lost)
			}
			victim.extended(lease)
			victim.goesOn("after the loss of its node")
			for _, e := range append(others, victim) {
				e.verdict()
			}
			for _, probe := range probes {
				r.control(probe, room.Change{Verb: room.Close})
			}
			if nodes[lost] == r.replica {
				r.restart(lost) // as a replica
			}
			r.leavesOnlyAudits(nodes...)
			for _, n := range nodes {
				if n != r.primaries[lost] { // it had no user for a moment
					n.refusedNothing()
				}
			}
		})
	}
}
