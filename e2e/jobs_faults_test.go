package e2e

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// jobsCase is a fault of the event router.
type jobsCase struct {
	name           string
	rest           bool // `make test-all` runs it
	env            []string
	arm            string // failpoint of the first process
	jobs, watchers int
	pace           time.Duration // between two events
	restless       bool          // all watchers reconnect each second
	oneGateway     bool          // all watchers stay at the first gateway
	alone          bool          // no other scenario runs meanwhile
	noTransient    bool
	loses          bool // events are lost, and shown as missing
	fault          func(*jobsRun)
}

// jobsCases are the faults under which each watcher receives each event once and in order.
func jobsCases() []jobsCase {
	cases := []jobsCase{
		{name: "a router is killed", alone: true, fault: (*jobsRun).routerKilled},
		{name: "a router is frozen past its leases", fault: (*jobsRun).frozen},
		{name: "Redis is unavailable for 15 s", rest: true, fault: func(r *jobsRun) { r.unavailable(15 * time.Second) }},
		{name: "Redis is unavailable for a minute", rest: true, fault: func(r *jobsRun) { r.unavailable(time.Minute) }},
		{name: "Redis is killed and starts again", fault: (*jobsRun).redisRestarts},
		{name: "a replica without the last second takes over", loses: true, noTransient: true, env: []string{"MILLRACE__PLUGINS__EVENTROUTER__GAP_WAIT=2s"}, fault: (*jobsRun).failover},
		{name: "connections are cut silently", rest: true, fault: (*jobsRun).silence},
		{name: "rolling restart", fault: (*jobsRun).rollingRestart},
		{name: "all watchers reconnect each second", restless: true, rest: true, fault: (*jobsRun).oddCursors},
		{name: "a gateway with 1,000 watchers is killed", rest: true, watchers: 1000, pace: 20 * time.Millisecond, oneGateway: true, fault: (*jobsRun).gatewayKilled},
		{
			name: "a gateway with 10,000 streams ends", rest: true, alone: true, jobs: 100, watchers: openFiles(10_000), pace: 100 * time.Millisecond,
			oneGateway: true, env: []string{"MILLRACE__PLUGINS__WEB__DRAIN_WINDOW=5s"}, fault: (*jobsRun).manyStreamsEnd,
		},
	}
	for _, point := range []string{"after-read", "logged", "published"} {
		cases = append(cases,
			jobsCase{name: "a router is killed at " + point, rest: true, arm: point + ":30", fault: (*jobsRun).killedAtPoint},
			jobsCase{name: "a router is frozen at " + point, rest: true, arm: point + ":30:stop", fault: (*jobsRun).frozenAtPoint},
		)
	}
	for i := range cases {
		c := &cases[i]
		if c.jobs == 0 {
			c.jobs = 20
		}
		if c.watchers == 0 {
			c.watchers = 3 * c.jobs
		}
		if c.pace == 0 {
			c.pace = 5 * time.Millisecond
		}
	}
	return cases
}

// The checker has its own copy of all events.
func TestWatchersReceiveEachEventUnderFaults(t *testing.T) {
	t.Parallel()
	runJobsCases(t, false)
}

// These cases limit a time, or need a whole machine.
func TestWatchersReceiveEachEventInTime(t *testing.T) { runJobsCases(t, true) }

func runJobsCases(t *testing.T, alone bool) {
	for _, c := range jobsCases() {
		if c.alone != alone {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.rest {
				tier.Rest(t, tier.Router, tier.Redis)
			} else {
				tier.Default(t)
			}
			if !alone {
				t.Parallel()
			}
			r := startJobsRun(t, c)
			c.fault(r)
			report := r.verdict()
			require.Equal(t, c.loses, report.Gaps > 0, "%+v", report)
		})
	}
}

// frozen stops a process until the other one has its shards, and lets it go on.
func (r *jobsRun) frozen() {
	r.signal(syscall.SIGSTOP)
	r.awaitOwner()
	r.arrives("the other process goes on", r.at(1))
	r.signal(syscall.SIGCONT)
	r.arrives("both go on", r.watchers)
}

func (r *jobsRun) signal(s syscall.Signal) {
	r.t.Helper()
	require.NoError(r.t, r.services[0].cmd.Process.Signal(s))
}

// unavailable refuses all connections of both processes to Redis for a time. The producer goes on.
func (r *jobsRun) unavailable(d time.Duration) {
	refuse(r.t, d, r.proxies[:]...)
	r.arrives("both go on", r.watchers)
}

// refuse refuses all connections of proxies for a time.
func refuse(t *testing.T, d time.Duration, proxies ...*faults.Proxy) {
	t.Helper()
	unused, err := freePort()
	require.NoError(t, err)
	before := make([]string, len(proxies))
	for i, p := range proxies {
		before[i] = p.Retarget(unused)
	}
	pause(t, d)
	for i, p := range proxies {
		p.Retarget(before[i])
	}
}

func (r *jobsRun) redisRestarts() {
	r.redis.kill()
	r.redis.run()
	r.arrives("both go on", r.watchers)
}

// silence loses what is on the connections of the first process to Redis, and then those of both.
func (r *jobsRun) silence() {
	r.proxies[0].Silence()
	r.arrives("both go on", r.watchers)
	for _, p := range r.proxies {
		p.Silence()
	}
	r.arrives("both go on", r.watchers)
}

func (r *jobsRun) rollingRestart() {
	for _, s := range r.services {
		require.NoError(r.t, s.cmd.Process.Signal(syscall.SIGTERM))
		s.ends()
		s.start()
		r.arrives("both go on", r.watchers)
	}
}

func (r *jobsRun) gatewayKilled() {
	r.services[0].kill()
	r.arrives("the other gateway goes on", r.watchers)
	r.services[0].start()
}

// killedAtPoint waits for the end of the first process at its failpoint.
func (r *jobsRun) killedAtPoint() {
	select {
	case <-r.services[0].done:
	case <-time.After(2 * time.Minute):
		require.FailNow(r.t, "the failpoint was not reached", "%s", r.services[0].log)
	}
	r.awaitOwner()
	r.arrives("the other process goes on", r.watchers)
}

// frozenAtPoint waits until the first process is frozen with entries that it has not acknowledged.
// The other process handles them too.
func (r *jobsRun) frozenAtPoint() {
	m := &member{cmd: r.services[0].cmd}
	r.await("the first process is frozen", func() error {
		if !m.stopped() {
			return errNotReached
		}
		return nil
	})
	r.awaitOwner()
	r.arrives("the other process goes on", r.at(1))
	r.signal(syscall.SIGCONT)
	r.arrives("both go on", r.watchers)
}

// failover replaces Redis by a replica that lacks the last events. Numbers that it has neither in
// a log nor in a shard are missing for later watchers, and are shown as a gap.
func (r *jobsRun) failover() {
	primary := r.redis
	replica := startNode(r.t, primary.program, "--replicaof", "127.0.0.1 "+primary.port())
	replica.shows(replica.section("replication"), "master_link_status:up")
	replica.must("REPLICAOF", "NO", "ONE")
	r.arrives("events that the replica lacks", r.watchers)

	r.paused.Lock()
	// A router that is late adds what it has read to the log of the replica, too. An acknowledged
	// event is in a log, and the router has its answer.
	r.await("all events are acknowledged on the primary", func() error {
		for _, job := range r.jobs {
			if last := fmt.Sprint(job.seq.Load()); !primary.HExists(r.t.Context(), joblog.LogKey("scan", job.id), last).Val() {
				return fmt.Errorf("event %s of %s is not in its log", last, job.id)
			}
			if pending, err := primary.XPending(r.t.Context(), shardOf(job.id), "eventrouter").Result(); err != nil || pending.Count > 0 {
				return fmt.Errorf("%s has pending entries: %+v, %w", shardOf(job.id), pending, err)
			}
		}
		return nil
	})
	missing, unlogged := map[string][]int64{}, map[string][]int64{}
	for _, job := range r.jobs {
		for seq := int64(1); seq <= job.seq.Load(); seq++ {
			logged, added := replicaHas(r.t, replica, job.id, seq)
			if !logged {
				unlogged[job.id] = append(unlogged[job.id], seq)
			}
			if !logged && !added {
				missing[job.id] = append(missing[job.id], seq)
			}
		}
		require.NotEmpty(r.t, missing[job.id])
	}
	r.redis, r.client = replica, producerOf(replica)
	for _, p := range r.proxies {
		p.Retarget(replica.addr)
	}
	primary.kill()
	r.paused.Unlock()
	r.arrives("both go on", r.watchers)
	stayed := append(r.at(0), r.at(1)...)
	var late []*jobWatcher
	for i := range r.watchers {
		late = append(late, r.watch(i))
	}
	r.arrives("later watchers go on", late)
	r.await("no watcher lacks what the replica has", func() error { return r.lacksOnly(unlogged, stayed) })
	for _, w := range late {
		w.mu.Lock()
		require.Subset(r.t, w.gaps, missing[w.job.id])
		w.mu.Unlock()
	}
}

// lacksOnly checks that watchers lack only numbers that the replica had in no log. A router that is slow, or
// that reads an entry a second time, may need longer than gap_wait for another one. Watchers that stayed at
// their gateway then receive the gap, and later the event. One that connects just then can keep the gap,
// because its id names only the last event, but none that those who stayed were not told of.
func (r *jobsRun) lacksOnly(unlogged map[string][]int64, stayed []*jobWatcher) error {
	allowed := maps.Clone(unlogged)
	check := func(w *jobWatcher) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for n := range w.lacks {
			if !slices.Contains(allowed[w.job.id], n) {
				return fmt.Errorf("a watcher of %s lacks %d, and may lack only %v", w.job.id, n, allowed[w.job.id])
			}
		}
		return nil
	}
	for _, w := range stayed {
		if err := check(w); err != nil {
			return err
		}
	}
	for _, w := range stayed {
		w.mu.Lock()
		allowed[w.job.id] = slices.Concat(allowed[w.job.id], w.gaps)
		w.mu.Unlock()
	}
	for _, w := range r.watchers {
		if err := check(w); err != nil {
			return err
		}
	}
	return nil
}

// replicaHas reports whether a server has an event in the log of its job, and in its shard.
func replicaHas(t *testing.T, n *node, jobID string, seq int64) (logged, added bool) {
	t.Helper()
	logged, err := n.HExists(t.Context(), joblog.LogKey("scan", jobID), fmt.Sprint(seq)).Result()
	require.NoError(t, err)
	entries, err := n.XRange(t.Context(), shardOf(jobID), "-", "+").Result()
	require.NoError(t, err)
	for _, e := range entries {
		if e.Values["job_id"] == jobID && e.Values["seq"] == fmt.Sprint(seq) {
			return logged, true
		}
	}
	return logged, false
}
