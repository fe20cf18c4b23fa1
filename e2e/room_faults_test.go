package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// roomCase is a fault of the waiting room.
type roomCase struct {
	name     string
	rest     bool // `make test-all` runs it
	long     bool // `make test-long` runs it, with the default times
	arm      string
	users    int              // of the first crowd
	replicas int              // of Redis, which have each promotion before it is answered
	absences bool             // connected users are absent for longer than the grace
	loses    bool             // Redis loses writes that it has acknowledged
	unacked  bool             // Redis loses acks and places: entries are claimed after min_idle
	lasting  bool             // the streams of dead brokers are deleted
	network  bool             // users have proxies to the brokers
	shuffled bool             // the crowd waits in a shuffled pre-queue until the fault
	clocks   [2]time.Duration // how far the clocks of the first broker and dispatcher are ahead
	// spare is added to grace and ready. The users return within a second, or later on a slow
	// machine. This second is not scaled, so the scaled times have less to spare than the defaults.
	spare    time.Duration
	stays    bool // no user of the crowd lets a place or a lease end by time
	patience time.Duration
	fault    func(*roomRun)
}

// roomCases are the faults under which each user keeps the place, and each slot becomes free again.
func roomCases() []roomCase {
	const (
		ahead       = 5 * time.Minute
		frozenSpare = 10 * time.Second // a machine may stand still before or after the fault
	)
	cases := []roomCase{
		{name: "a broker is killed", rest: true, fault: func(r *roomRun) { r.brokers[0].kill() }},
		{name: "a dispatcher is killed", fault: func(r *roomRun) { r.dispatchers[0].kill() }},
		{name: "a dispatcher is frozen", rest: true, fault: func(r *roomRun) { r.frozen(r.dispatchers[0], 3*time.Second) }},
		{name: "Redis is killed and starts again", rest: true, fault: func(r *roomRun) { r.redis.kill(); r.redis.run() }},
		{name: "Redis is unavailable", rest: true, fault: func(r *roomRun) { r.cutOff(scaled(3*time.Minute), r.processes()...) }},
		{name: "a replica without the last second takes over, replicas 1", replicas: 1, unacked: true, fault: func(r *roomRun) { r.failover(true) }},
		{name: "a replica without the last second takes over", rest: true, loses: true, unacked: true, fault: func(r *roomRun) { r.failover(true) }},
		{name: "a replica takes over", rest: true, fault: func(r *roomRun) { r.failover(false) }},
		{name: "a replica takes over, replicas 1", rest: true, replicas: 1, fault: func(r *roomRun) { r.failover(false) }},
		{name: "a broker is killed and does not return", rest: true, lasting: true, fault: func(r *roomRun) { r.brokers[0].kill() }},
		{name: "streams of brokers can not be written", rest: true, fault: (*roomRun).streamsRefused},
		{name: "a broker returns with its name", rest: true, fault: (*roomRun).oldName},
		{name: "a broker is frozen", rest: true, spare: frozenSpare, fault: func(r *roomRun) { r.frozen(r.brokers[0], 3*time.Second) }},
		{name: "a broker is frozen past the grace", rest: true, absences: true, fault: func(r *roomRun) { r.frozen(r.brokers[0], roomScaled.grace+roomScaled.ready) }},
		{name: "a broker is cut off", rest: true, absences: true, fault: func(r *roomRun) { r.cutOff(scaled(3*time.Minute), r.brokers[0]) }},
		{name: "the network of the users is interrupted", rest: true, network: true, spare: 12 * time.Second, fault: func(r *roomRun) { r.interrupted(scaled(90 * time.Second)) }},
		{name: "the clock of a broker is ahead, that of a dispatcher is behind", rest: true, clocks: [2]time.Duration{ahead, -ahead}, fault: (*roomRun).clocksOff},
		{name: "the clock of a broker is behind, that of a dispatcher is ahead", rest: true, clocks: [2]time.Duration{-ahead, ahead}, fault: (*roomRun).clocksOff},
		{name: "a join storm", rest: true, spare: 10 * time.Minute, stays: true, fault: (*roomRun).joinStorm},
		{name: "rolling restart", rest: true, fault: (*roomRun).rollingRestart},
		{name: "a broker with many streams ends", rest: true, users: 1000, spare: 20 * time.Second, fault: (*roomRun).brokerEnds},
		{name: "Redis is unavailable for 5 minutes, default times", long: true, fault: func(r *roomRun) { r.cutOff(5*time.Minute, r.processes()...) }},
		{name: "a broker is cut off for 3 minutes, default times", long: true, absences: true, fault: func(r *roomRun) { r.cutOff(3*time.Minute, r.brokers[0]) }},
		{name: "the network of the users is interrupted for 90 s, default times", long: true, network: true, fault: func(r *roomRun) { r.interrupted(90 * time.Second) }},
	}
	for _, point := range failpoint.RoomPoints() {
		killed := roomCase{name: fmt.Sprint("a process is killed at ", point), rest: true, arm: fmt.Sprint(point, ":10"), fault: (*roomRun).killedAtPoint}
		// A dispatcher is frozen in the middle of a tick.
		frozen := roomCase{name: fmt.Sprint("a process is frozen at ", point), rest: true, arm: fmt.Sprint(point, ":10:stop"), fault: (*roomRun).frozenAtPoint}
		if frozen.ofBroker() {
			frozen.spare = frozenSpare
		}
		cases = append(cases, killed, frozen)
	}
	for _, point := range failpoint.DrawPoints() {
		cases = append(cases,
			roomCase{name: fmt.Sprint("a dispatcher is killed in a draw at ", point), rest: true, shuffled: true, users: 800, arm: fmt.Sprint(point, ":1"), fault: (*roomRun).killedInDraw},
			roomCase{name: fmt.Sprint("a dispatcher is frozen in a draw at ", point), rest: true, shuffled: true, users: 800, arm: fmt.Sprint(point, ":1:stop"), fault: (*roomRun).frozenInDraw},
		)
	}
	for i := range cases {
		c := &cases[i]
		if c.users == 0 {
			c.users = 200
		}
		c.patience = 5 * time.Minute
		if c.long {
			c.patience = 20 * time.Minute
		}
	}
	return cases
}

// ofBroker reports whether a broker passes the failpoint.
func (c roomCase) ofBroker() bool {
	return strings.HasPrefix(c.arm, string(failpoint.Claimed)) || strings.HasPrefix(c.arm, string(failpoint.Finished))
}

// roomHabit has many users that move between the brokers. Few let a lease expire, and only early
// ones: the case waits for its end.
func roomHabit(i int) checker.Habit {
	rare := map[int]checker.Habit{
		1: checker.Reconnects, 3: checker.Abandons, 5: checker.HasTwoTabs, 7: checker.Expires, 9: checker.Leaves, 11: checker.Vanishes,
		13: checker.Reconnects, 15: checker.HasTwoTabs, 17: checker.Reconnects,
	}
	if i%20 == 7 && i > 60 {
		return checker.Buys
	}
	return rare[i%20]
}

func (c roomCase) habit(i int) checker.Habit {
	h := roomHabit(i)
	if c.stays && (h == checker.Expires || h == checker.Vanishes) {
		return checker.Buys
	}
	return h
}

// The checker has its own copy of what users and the shop have received.
func TestEachUserKeepsThePlaceUnderFaults(t *testing.T) {
	t.Parallel()
	for _, c := range roomCases() {
		t.Run(c.name, func(t *testing.T) {
			switch {
			case c.long && os.Getenv("MILLRACE_ROOM_LONG") == "":
				t.Skip("`make test-long` runs it (MILLRACE_ROOM_LONG=1)")
			case c.long || c.rest:
				tier.Rest(t, tier.Room, tier.Redis)
			default:
				tier.Default(t)
			}
			t.Parallel()
			r := startRoomRun(t, c)
			r.note("the fault begins")
			c.fault(r)
			r.note("the fault is over")
			r.goesOn("the room goes on")
			r.noScans()
			r.verdict()
		})
	}
}

// forgetCommands resets the statistics of Redis. A process tries SCAN when it starts, because it
// checks its rights.
func (r *roomRun) forgetCommands() { r.redis.ConfigResetStat(r.t.Context()) }

// noScans checks that no tick, promotion, sign of life or claim has run SCAN or KEYS.
func (r *roomRun) noScans() {
	stats := r.redis.Info(r.t.Context(), "commandstats").Val()
	require.Contains(r.t, stats, "cmdstat_zadd:")
	require.NotContains(r.t, stats, "cmdstat_scan:")
	require.NotContains(r.t, stats, "cmdstat_keys:")
}

// cutOff refuses the connections of processes to Redis for a time.
func (r *roomRun) cutOff(d time.Duration, processes ...*faultyProcess) {
	var proxies []*faults.Proxy
	for _, p := range processes {
		proxies = append(proxies, p.redis)
	}
	refuse(r.t, d, proxies...)
}

// interrupted refuses the connections of all users for a time.
func (r *roomRun) interrupted(d time.Duration) { refuse(r.t, d, r.network...) }

// frozen stops a process for a time.
func (r *roomRun) frozen(p *faultyProcess, d time.Duration) {
	require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	pause(r.t, d)
	require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

func (r *roomRun) killedAtPoint() { r.reached((*faultyProcess).isKilled) }

// isKilled returns nil when the process has ended.
func (p *faultyProcess) isKilled() error {
	select {
	case <-p.done:
		return nil
	default:
		return errNotReached
	}
}

// isFrozen returns nil when the process is stopped.
func (p *faultyProcess) isFrozen() error {
	if m := (&member{cmd: p.cmd}); !m.stopped() {
		return errNotReached
	}
	return nil
}

// frozenAtPoint freezes a process for many ticks.
func (r *roomRun) frozenAtPoint() {
	p := r.reached((*faultyProcess).isFrozen)
	pause(r.t, 3*time.Second)
	require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// reached waits until the process of the case is at its failpoint. The dispatcher that ticks first
// makes all promotions: the other one is frozen until then.
func (r *roomRun) reached(at func(*faultyProcess) error) *faultyProcess {
	p, other := r.victim(), r.dispatchers[1].cmd.Process
	if p == r.dispatchers[0] {
		require.NoError(r.t, other.Signal(syscall.SIGSTOP))
		defer func() { require.NoError(r.t, other.Signal(syscall.SIGCONT)) }()
	}
	r.await("the process is at its failpoint", func() error { return at(p) })
	return p
}

// failover replaces Redis by a replica. With loses, the replica lacks the last second.
func (r *roomRun) failover(loses bool) {
	primary, replica := r.redis, r.replica
	if replica == nil {
		replica = r.replicaOf(primary)
	}
	if r.c.replicas > 0 {
		r.replicaOf(replica)
	}
	if loses {
		replica.must("REPLICAOF", "NO", "ONE")
		pause(r.t, time.Second)
	} else {
		primary.must("CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE")
		primary.awaitReplica(replica)
		replica.must("REPLICAOF", "NO", "ONE")
	}
	r.mu.Lock()
	r.redis = replica
	r.mu.Unlock()
	for _, p := range r.processes() {
		p.redis.Retarget(replica.addr)
	}
	primary.kill()
	if r.c.loses {
		r.check.Lost(time.Now().UnixMilli())
	}
}

// streamsRefused makes both streams DISPATCH useless for a while. The brokers find the promotions
// by the rank table and by their signs.
func (r *roomRun) streamsRefused() {
	for _, b := range r.brokers {
		require.NoError(r.t, r.redis.Set(r.t.Context(), room.DispatchStream(b.name), "text", 0).Err())
	}
	r.goesOn("without streams")
	for _, b := range r.brokers {
		require.NoError(r.t, r.redis.Del(r.t.Context(), room.DispatchStream(b.name)).Err())
	}
}

// oldName kills a broker, and adds news of all users to its stream. Most users wait, or have gone.
// The broker then starts again with the same name.
func (r *roomRun) oldName() {
	p := r.brokers[0]
	p.kill()
	for i := range r.c.users {
		require.NoError(r.t, r.redis.XAdd(r.t.Context(), &goredis.XAddArgs{
			Stream: room.DispatchStream(p.name), Values: []any{"userId", fmt.Sprint("user-", i+1), "eventId", roomEvent, "instanceId", p.name},
		}).Err())
	}
	r.restart(p)
	r.goesOn("the broker is back")
	r.await("its stream is read", func() error {
		if n := r.redis.XLen(r.t.Context(), room.DispatchStream(p.name)).Val(); n > 0 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
}

func (r *roomRun) restart(p *faultyProcess) {
	p.launch()
	require.NoError(r.t, p.awaitReady(r.t.Context()))
	r.forgetCommands()
}

func (r *roomRun) rollingRestart() {
	for _, p := range r.processes() {
		require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGTERM))
		p.ends()
		r.restart(p)
		r.goesOn(p.name + " is back")
	}
}

// brokerEnds ends a broker with many streams.
func (r *roomRun) brokerEnds() {
	p := r.brokers[0]
	require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.ends()
	require.NotContains(r.t, p.log.String(), "streams have not ended")
}
