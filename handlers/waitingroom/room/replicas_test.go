package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// W39: an answer, also a repeated one, waits until the replica has what it says.
func TestAnswersWaitForReplicas(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		replica := s.Replica()
		wait := func(o *Options) { o.Replicas, o.ReplicaWait = 1, 50*time.Millisecond }
		r := newRig(t, s.Server, 10, wait)
		o := options()
		wait(&o)
		r.enterAll(4)
		var leases [4]Place
		calls := map[string]func(rooms *Store) error{
			"tick": func(rooms *Store) error {
				r.outage(time.Second)
				got, err := rooms.Tick(r.ctx, r.event)
				require.True(t, got.Ran)
				require.NotNil(t, got.Table)
				if err != nil {
					require.Zero(t, got.Promoted)
				} else if got.Promoted == 0 { // the replica came during the tick
					err = redis.ErrNotReplicated
				}
				return err
			},
			"claim": func(rooms *Store) error {
				_, err := rooms.Claim(r.ctx, r.event, "broker-1", []Sign{{User: "user-0"}})
				return err
			},
			"verify": func(rooms *Store) error {
				_, err := rooms.Verify(r.ctx, r.event, "user-1", leases[1].JTI, "session")
				return err
			},
			"extend": func(rooms *Store) error {
				_, err := rooms.Extend(r.ctx, r.event, "user-1", leases[1].JTI, "session", leases[1].Until)
				return err
			},
			"sold": func(rooms *Store) error {
				_, err := rooms.Finish(r.ctx, r.event, "user-1", leases[1].JTI, "session", true)
				return err
			},
			"abandoned": func(rooms *Store) error {
				_, err := rooms.Finish(r.ctx, r.event, "user-2", leases[2].JTI, "", false)
				return err
			},
			"leave": func(rooms *Store) error {
				_, err := rooms.Leave(r.ctx, r.event, "user-3", "left")
				return err
			},
			"kick": func(rooms *Store) error {
				_, err := rooms.Control(r.ctx, r.event, Change{Verb: Kick, By: "ann", User: "user-3"})
				return err
			},
		}
		replicated := func(name string) {
			t.Helper()
			require.Eventually(t, func() bool {
				err := calls[name](r.rooms)
				if err != nil {
					require.ErrorIs(t, err, redis.ErrNotReplicated, name)
				}
				return err == nil
			}, 2*time.Minute, time.Millisecond, name)
		}
		for _, name := range []string{"tick", "claim", "verify", "extend", "sold", "abandoned", "leave", "kick"} {
			replica.SetPaused(true)
			require.ErrorIs(t, calls[name](r.rooms), redis.ErrNotReplicated, name)
			if name != "tick" { // on a connection that has changed nothing
				require.ErrorIs(t, calls[name](r.process(s.Server, o)), redis.ErrNotReplicated, "%s again", name)
			}
			if name == "claim" {
				require.Equal(t, Ready, r.status("user-0").State, "the turn is not used")
				// The replica has stopped since.
				_, _, err := r.rooms.runScript(r.ctx, "claim", r.event, "broker-1", "user-0")
				require.ErrorIs(t, err, redis.ErrNotReplicated)
				for what, p := range map[string]Place{"sign": r.seen(Sign{User: "user-0"})[0], "entering": r.enter("user-0"), "status": r.status("user-0")} {
					require.Equal(t, Admitted, p.State, what)
					require.True(t, p.Unreplicated, what)
				}
			}
			replica.SetPaused(false)
			replicated(name)
			for i := range leases {
				leases[i] = r.status("user-" + string(rune('0'+i)))
			}
		}
		require.False(t, r.claim("user-0").Unreplicated)
	})
}

// Without a replica, each event of a node would wait for it: the ticks of many events would stop.
func TestOneEventWaitsForAReplicaThatIsMissing(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		r := newRig(t, s.Server, 10, func(o *Options) { o.Replicas, o.ReplicaWait = 1, 50*time.Millisecond })
		r.rooms.missingFor = time.Hour
		r.enterAll(1)
		for n := range 5 {
			if n == 1 {
				require.NoError(t, r.client.ConfigResetStat(t.Context()).Err())
			}
			r.outage(time.Second)
			got, err := r.rooms.Tick(r.ctx, r.event)
			require.ErrorIs(t, err, redis.ErrNotReplicated)
			require.True(t, got.Ran)
			require.Zero(t, got.Promoted)
		}
		require.NotContains(t, r.client.Info(t.Context(), "commandstats").Val(), "cmdstat_wait:")
	})
}

// A user has a lease, and the replica is missing for longer than the lease. No token can be used in
// that time, so the lease ends later by it.
func TestTimeStandsStillWithoutReplicas(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		r := newRig(t, s.Server, 1, func(o *Options) { o.Replicas, o.ReplicaWait = 1, 50*time.Millisecond })
		alone := r.rooms
		r.rooms = r.process(s.Server, options()) // needs no replica
		r.enterAll(2)
		require.Equal(t, 1, r.tick().Promoted)
		lease := r.claim("user-0")
		alone.missingFor = time.Hour
		for range 400 {
			r.outage(time.Second)
			got, err := alone.Tick(r.ctx, r.event)
			require.ErrorIs(t, err, redis.ErrNotReplicated)
			require.True(t, got.Ran)
			require.Zero(t, got.Gap, "it is no outage")
			require.Empty(t, got.Ended[Expired])
		}
		after := r.status("user-0")
		require.Equal(t, lease.JTI, after.JTI)
		require.Equal(t, lease.Until+400_000, after.Until)
		require.Equal(t, Waiting, r.status("user-1").State, "no user is absent")
		for range 300 {
			r.tick()
		}
		require.Empty(t, r.status("user-0").JTI, "with ticks the lease ends")
	})
}
