package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/plugins/token"
)

const (
	roomEvent       = "concert"
	roomSeats       = 100_000 // until the fault is over
	roomConcurrency = 20
)

// roomTimes are settings of a room.
type roomTimes struct{ seen, grace, ready, token time.Duration }

// The times of the rooms are the defaults, or a fifteenth of them. A recovery is not shorter: its
// hold is 10 s.
var (
	roomDefaults = roomTimes{30 * time.Second, 2 * time.Minute, 2 * time.Minute, 5 * time.Minute}
	roomScaled   = roomTimes{scaled(roomDefaults.seen), scaled(roomDefaults.grace), scaled(roomDefaults.ready), scaled(roomDefaults.token)}
)

func scaled(d time.Duration) time.Duration { return d / 15 }

// roomRun is one case: two brokers and two dispatchers, each behind a proxy to Redis. A crowd
// passes the room until the case is over.
type roomRun struct {
	t           *testing.T
	c           roomCase
	times       roomTimes
	redis       *node
	replica     *node // nil without replicas
	brokers     [2]*faultyProcess
	dispatchers [2]*faultyProcess
	network     []*faults.Proxy // between users and brokers, in a case that interrupts it
	check       *checker.Checker
	more        atomic.Bool // users arrive
	report      chan demo.Report
	began       time.Time
	goroutines  map[*exec.Cmd]float64 // of each process, before the crowd

	mu       sync.Mutex
	last     room.Status // the last sample
	overdue  string      // user whose lease is over since overdueAt
	dueTick  int64
	problems []string
	sampled  time.Time     // when last was read
	still    time.Duration // longest time between two samples
	course   []string      // of the fault and the room, for a case that fails
}

// faultyProcess is a broker or a dispatcher.
type faultyProcess struct {
	*roomProcess
	name  string
	redis *faults.Proxy
}

// processes returns all processes.
func (r *roomRun) processes() []*faultyProcess { return append(r.brokers[:], r.dispatchers[:]...) }

// startRoomRun starts servers, processes and the crowd. It returns under load.
func startRoomRun(t *testing.T, c roomCase) *roomRun {
	t.Helper()
	r := newRoomRun(t, c)
	for _, p := range r.processes() {
		p.launch()
	}
	for _, p := range r.processes() {
		require.NoError(t, p.awaitReady(t.Context()))
	}
	for _, p := range r.processes() {
		u, err := p.usage(t.Context())
		require.NoError(t, err)
		r.goroutines[p.cmd] = u.goroutines
	}
	r.arrive()
	if c.arm == "" {
		r.goesOn("under load")
	}
	return r
}

// newRoomRun starts the servers. The processes are not started.
func newRoomRun(t *testing.T, c roomCase) *roomRun {
	t.Helper()
	const program = "redis-server"
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("MILLRACE_TEST_REDIS: %s is not installed", program)
	}
	r := &roomRun{t: t, c: c, times: roomScaled, report: make(chan demo.Report, 1), began: time.Now(), goroutines: map[*exec.Cmd]float64{}}
	if c.long {
		r.times = roomDefaults
	}
	r.times.grace += c.spare
	r.times.ready += c.spare
	o := checker.Options{TokenTTL: r.times.token, Loses: c.loses, Restores: c.unacked}
	if c.absences {
		o.Absence = r.times.grace
	}
	r.check = checker.New(o)
	r.redis = startNode(t, program, "--appendonly", "yes", "--appendfsync", "always")
	if c.replicas > 0 {
		r.replica = r.replicaOf(r.redis)
	}
	events := httptest.NewServer(sim.New(map[string]int64{roomEvent: roomSeats}))
	t.Cleanup(events.Close)
	key := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, token.CreateKey(key))
	for i := range r.brokers {
		r.brokers[i] = r.process("broker", i+1, events.URL, key)
		r.dispatchers[i] = r.process("dispatcher", i+1, events.URL, key)
	}
	r.armed()
	return r
}

// process returns a process of a role. It is not started.
func (r *roomRun) process(role string, number int, events, key string) *faultyProcess {
	t := r.t
	t.Helper()
	proxy, err := faults.NewProxy(r.redis.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	p := &faultyProcess{name: fmt.Sprint(role, "-", number), redis: proxy}
	p.roomProcess, err = newRoomProcess(t.TempDir(), proxy.Addr(), key, p.name, role,
		fmt.Sprint("seen_interval: ", r.times.seen), fmt.Sprint("grace: ", r.times.grace), fmt.Sprint("ready_ttl: ", r.times.ready),
		fmt.Sprint("token_ttl: ", r.times.token), fmt.Sprint("replicas: ", r.c.replicas), "replica_wait: 1s",
		"clear_after: 15s", "event_service: {url: "+events+"}")
	require.NoError(t, err)
	p.t, p.program = t, binary(t)
	if r.c.unacked { // cleared waits until the entries are claimed again
		for _, plugin := range []string{"REDIS", "RECLAIM"} {
			p.env = append(p.env, fmt.Sprintf("MILLRACE__PLUGINS__%s__MIN_IDLE=%s", plugin, scaled(5*time.Minute)))
		}
		p.env = append(p.env, fmt.Sprint("MILLRACE__PLUGINS__RECLAIM__INTERVAL=", scaled(time.Minute)))
	}
	t.Cleanup(p.kill)
	return p
}

// replicaOf starts a replica of a server.
func (r *roomRun) replicaOf(primary *node) *node {
	r.t.Helper()
	replica := startNode(r.t, primary.program, "--replicaof", "127.0.0.1 "+primary.port())
	replica.shows(replica.section("replication"), "master_link_status:up")
	return replica
}

// awaitReplica waits until a replica has all writes.
func (n *node) awaitReplica(replica *node) {
	n.t.Helper()
	offset := regexp.MustCompile(`master_repl_offset:(\d+)`)
	n.await("the replica has all writes", func() error {
		ours := offset.FindString(n.Info(n.t.Context(), "replication").Val())
		if theirs := offset.FindString(replica.Info(n.t.Context(), "replication").Val()); ours == "" || ours != theirs {
			return fmt.Errorf("%q and %q", ours, theirs)
		}
		return nil
	})
}

// armed gives processes of the case a failpoint or another clock.
func (r *roomRun) armed() {
	if r.c.clocks != [2]time.Duration{} {
		r.brokers[0].wrongClock(r.c.clocks[0])
		r.dispatchers[0].wrongClock(r.c.clocks[1])
	}
	if r.c.arm == "" {
		return
	}
	p := r.victim()
	p.program, p.env = armedBinary(r.t), []string{"MILLRACE_FAULT_POINT=" + r.c.arm}
}

// victim returns the process that passes the failpoint.
func (r *roomRun) victim() *faultyProcess {
	if r.c.ofBroker() {
		return r.brokers[0]
	}
	return r.dispatchers[0]
}

// arrive opens the room and sends the crowd.
func (r *roomRun) arrive() {
	r.t.Helper()
	brokers := &balancer{turns: true}
	for _, b := range r.brokers {
		address := strings.TrimPrefix(b.url, "http://")
		if r.c.network {
			proxy, err := faults.NewProxy(address)
			require.NoError(r.t, err)
			r.t.Cleanup(func() { _ = proxy.Close() })
			r.network, address = append(r.network, proxy), proxy.Addr()
		}
		brokers.to = append(brokers.to, "http://"+address)
	}
	const url = "http://brokers"
	mode := room.FIFO
	if r.c.shuffled {
		mode = room.Shuffle
	}
	r.operator("open", "--mode", mode, "--capacity", strconv.Itoa(roomSeats), "--concurrency", strconv.Itoa(roomConcurrency))
	shop, err := shopmiddleware.New(shopmiddleware.Options{
		URL: url, ShopToken: roomShop, Event: func(*http.Request) string { return roomEvent },
		Client: &http.Client{Transport: brokers, Timeout: 3 * time.Second},
	})
	require.NoError(r.t, err)
	r.more.Store(true)
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	r.t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		report, err := demo.Run(ctx, demo.Options{
			Event: roomEvent, Users: r.c.users, Checker: r.check, URL: url, Client: &http.Client{Transport: brokers}, Gate: shop,
			Status: r.sample, Progress: func(int64) {}, Habit: r.c.habit, More: r.more.Load, Patience: r.c.patience,
			Close: func(context.Context) error {
				_, err := r.command("room", "close", roomEvent, "--why", "sold out")
				return err
			},
		})
		if err != nil {
			report.Problems = append(report.Problems, err.Error())
		}
		r.report <- report
	}()
}

// operator changes the room.
func (r *roomRun) operator(verb string, args ...string) {
	r.t.Helper()
	out, err := r.command(append([]string{"room", verb, roomEvent, "--why", "test"}, args...)...)
	require.NoError(r.t, err, "%s", out)
}

// command runs a command of the binary with the settings of the last dispatcher.
func (r *roomRun) command(args ...string) (string, error) {
	out, code := r.dispatchers[1].command("", args...)
	r.forgetCommands()
	if code != 0 {
		return out, fmt.Errorf("%v: code %d: %s", args, code, out)
	}
	return out, nil
}

// sample reads the room in one transaction, and changes nothing. While Redis does not answer it
// returns the sample before.
func (r *roomRun) sample(ctx context.Context) (room.Status, error) {
	const id = ":{" + roomEvent + "}"
	r.mu.Lock()
	defer r.mu.Unlock()
	pipe := r.redis.TxPipeline()
	fields, waiting := pipe.HGetAll(ctx, "ROOM"+id), pipe.ZCard(ctx, "WAITING"+id)
	leases, first := pipe.ZCard(ctx, "ENTRY_LEASES"+id), pipe.ZRangeWithScores(ctx, "ENTRY_LEASES"+id, 0, 0)
	if _, err := pipe.Exec(ctx); err != nil || len(fields.Val()) == 0 {
		return r.last, ctx.Err()
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(fields.Val()[name], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	s := room.Status{
		State: fields.Val()["state"], Capacity: number("capacity"), Concurrency: number("concurrency"), Sold: number("sold"),
		Promoted: number("promoted"), Waiting: waiting.Val(), Ready: leases.Val(), LastTick: number("tick_at") + number("stopped"),
	}
	s.Free = max(0, min(s.Capacity-s.Sold, s.Concurrency)-s.Ready)
	r.sees(s)
	r.overdueLease(first.Val(), number("tick_at"), number("tick"), number("tick_at") < number("hold_until"))
	return s, nil
}

// sees stores a sample. The course gets it after each second. The caller has r.mu.
func (r *roomRun) sees(s room.Status) {
	now := time.Now()
	if !r.sampled.IsZero() {
		r.still = max(r.still, now.Sub(r.sampled))
	}
	if now.Truncate(time.Second) != r.sampled.Truncate(time.Second) || s.State != r.last.State {
		r.course = append(r.course, fmt.Sprintf("%s room %s: %d wait, %d leases, %d sold, %d promoted, last tick %s", now.UTC().Format(courseClock),
			s.State, s.Waiting, s.Ready, s.Sold, s.Promoted, time.UnixMilli(s.LastTick).UTC().Format(courseClock)))
	}
	r.last, r.sampled = s, now
}

const courseClock = "15:04:05.000"

// note adds a line to the course of the case.
func (r *roomRun) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.course = append(r.course, time.Now().UTC().Format(courseClock)+" "+text)
}

// story returns what a reader needs after a failure: the problems, the histories of their users,
// the course of the case, and the logs. All times are UTC.
func (r *roomRun) story(report demo.Report) string {
	problems := report.Problems
	report.Problems = nil
	r.mu.Lock()
	course, still := strings.Join(r.course, "\n"), r.still
	r.mu.Unlock()
	return fmt.Sprintf("%s\n--- the times of the room are %+v, and the longest time between two samples is %s\n%+v\n%s--- the course\n%s\n%s",
		strings.Join(problems, "\n"), r.times, still.Round(time.Millisecond), report, r.check.Histories(problems), course, r.logs())
}

// overdueLease reports a lease that was over at two ticks.
func (r *roomRun) overdueLease(first []goredis.Z, now, tick int64, held bool) {
	if held || len(first) == 0 || int64(first[0].Score) > now {
		r.overdue = ""
		return
	}
	user := fmt.Sprint(first[0].Member)
	if user != r.overdue {
		r.overdue, r.dueTick = user, tick
	} else if tick > r.dueTick+1 {
		r.problems = append(r.problems, fmt.Sprintf("the lease of %s is over, and was not ended by a tick", user))
	}
}

func (r *roomRun) status() room.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *roomRun) await(what string, check func() error) {
	r.t.Helper()
	if err := until(r.t.Context(), 3*time.Minute, what, check); err != nil {
		require.FailNow(r.t, err.Error(), "%+v\n%s", r.status(), r.story(demo.Report{}))
	}
	r.note(what)
	r.t.Logf("after %s: %s", time.Since(r.began).Round(time.Millisecond), what)
}

func (r *roomRun) logs() string {
	var b strings.Builder
	for _, p := range r.processes() {
		fmt.Fprintf(&b, "--- %s\n%s", p.name, p.log)
	}
	return b.String()
}

// goesOn waits until 20 more seats are sold.
func (r *roomRun) goesOn(what string) {
	r.t.Helper()
	want := r.status().Sold + 20
	r.await(what, func() error {
		if s := r.status(); s.Sold < want {
			return fmt.Errorf("%d of %d sold: %+v", s.Sold, want, s)
		}
		return nil
	})
}

// verdict sells the last seats, waits until all users have gone, and returns the report. At the end
// Redis has nothing of the room but the audit, and processes have the goroutines of their start.
func (r *roomRun) verdict() demo.Report {
	r.t.Helper()
	r.operator("hold") // so that no more seats than these are taken before the change
	r.await("the room is on hold, and more users wait than will be served", func() error {
		if s := r.status(); s.State != "paused" || s.Waiting <= 2*roomConcurrency {
			return fmt.Errorf("it is %s, and %d wait", s.State, s.Waiting)
		}
		return nil
	})
	s := r.status()
	r.operator("set", "--capacity", strconv.FormatInt(s.Sold+s.Ready+s.Admitted+roomConcurrency, 10))
	r.operator("resume")
	r.more.Store(false)
	var report demo.Report
	select {
	case report = <-r.report:
	case <-time.After(r.c.patience + 3*time.Minute):
		require.FailNow(r.t, "the crowd has not gone", "%s", r.story(demo.Report{}))
	}
	r.mu.Lock()
	report.Problems = append(report.Problems, r.problems...)
	r.mu.Unlock()
	if !report.OK() {
		require.FailNow(r.t, strings.Join(report.Problems, "; "), "%s", r.story(report))
	}
	require.NotZero(r.t, report.Unserved, "all users were served, so no slot was scarce")
	r.cleared()
	r.idle()
	r.t.Logf("after %s: %+v", time.Since(r.began).Round(time.Millisecond), report)
	return report
}

// cleared waits until Redis has nothing of the room but the audit.
func (r *roomRun) cleared() {
	r.t.Helper()
	r.await("Redis has only the audit", func() error {
		left, err := r.left()
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%v are left", left)
		}
		return err
	})
}

// usage is what the process holds.
func (p *faultyProcess) usage(ctx context.Context) (usage, error) {
	return (&member{metrics: p.ops + "/metrics"}).usage(ctx)
}

// idle waits until processes that run since the start have about as many goroutines as then. Each
// user of the crowd had several.
func (r *roomRun) idle() {
	r.t.Helper()
	for _, p := range r.processes() {
		before, known := r.goroutines[p.cmd]
		if !known || p.isKilled() == nil {
			continue
		}
		r.await(p.name+" is idle", func() error {
			u, err := p.usage(r.t.Context())
			if err == nil && u.goroutines > before+10 {
				err = fmt.Errorf("%.0f goroutines, %.0f before the crowd", u.goroutines, before)
			}
			return err
		})
	}
}

// left returns what Redis has in addition to the audit, the presence of processes, and the empty
// streams of the brokers. The stream of a dead broker is deleted later.
func (r *roomRun) left() (left []string, err error) {
	ctx := r.t.Context()
	keys, err := r.redis.Keys(ctx, "*").Result()
	for _, key := range keys {
		broker, isDispatch := strings.CutPrefix(key, room.DispatchStream(""))
		switch {
		case strings.HasPrefix(key, "ROOM_AUDIT:"), key == "DISPATCH_INSTANCES", strings.HasPrefix(key, "millrace:"):
		case isDispatch && (r.dead(broker) || r.redis.XLen(ctx, key).Val() == 0):
		default:
			left = append(left, key)
		}
	}
	return left, err
}

// dead reports whether a broker has ended, and lasting is not set.
func (r *roomRun) dead(name string) bool {
	for _, p := range r.brokers {
		if p.name == name {
			select {
			case <-p.done:
				return !r.c.lasting
			default:
			}
		}
	}
	return false
}
