package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/token"
)

const (
	clusterSlots = 16384
	// clusterToken is the token_ttl: a lease is longer than the recovery after a failover.
	clusterToken = 30 * time.Second
	// clusterClear is the clear_after: the end of the last lease is seen before the clearing.
	clusterClear = 40 * time.Second
)

// clusterRun is a Cluster with an event on each primary. Two brokers and two dispatchers have the
// user of the READMEs.
type clusterRun struct {
	t         *testing.T
	primaries []*node
	replica   *node // of the last primary
	processes []*roomProcess
	brokers   balancer
	rooms     *room.Store
	events    []*clusterEvent // by primary
}

// clusterEvent is an event with a crowd.
type clusterEvent struct {
	*clusterRun
	name   string
	check  *checker.Checker
	more   atomic.Bool // users arrive
	report chan demo.Report

	mu   sync.Mutex
	last room.Status
}

func startClusterRun(t *testing.T) *clusterRun {
	t.Helper()
	r := &clusterRun{t: t, brokers: balancer{turns: true}}
	// Without full coverage the other nodes serve their slots while one is lost.
	r.primaries, r.replica = startCluster(t, "redis-server", "--cluster-require-full-coverage", "no", "--appendonly", "yes", "--appendfsync", "always")
	config := redis.DefaultClientConfig()
	config.Addrs, config.Cluster, config.Username, config.Password = nil, true, "millrace", setting.NewSecret(theirPassword)
	for _, n := range append(r.primaries, r.replica) {
		n.restrict(roomRights(t)...)
	}
	for _, n := range r.primaries {
		config.Addrs = append(config.Addrs, n.addr)
	}
	server := redis.New().Server(&config)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	r.rooms = room.New(server, room.Options{
		PromoteInterval: 250 * time.Millisecond, PromoteBatch: 200, TokenTTL: clusterToken, ReadyTTL: roomScaled.ready,
		Grace: roomScaled.grace, SeenInterval: roomScaled.seen, ClearAfter: clusterClear, MaxEvents: 100,
	})
	none := httptest.NewServer(sim.New(map[string]int64{}))
	t.Cleanup(none.Close)
	key := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, token.CreateKey(key))
	for i, role := range []string{"broker", "broker", "dispatcher", "dispatcher"} {
		p, err := newRoomProcess(t.TempDir(), config.Addrs[0], key, fmt.Sprint(role, "-", i+1), role,
			fmt.Sprint("seen_interval: ", roomScaled.seen), fmt.Sprint("grace: ", roomScaled.grace), fmt.Sprint("ready_ttl: ", roomScaled.ready),
			fmt.Sprint("token_ttl: ", clusterToken), fmt.Sprint("clear_after: ", clusterClear), "event_service: {url: "+none.URL+"}")
		require.NoError(t, err)
		p.t, p.program, p.env = t, binary(t), []string{
			"MILLRACE__PLUGINS__REDIS__ADDRS=" + strings.Join(config.Addrs, ","), "MILLRACE__PLUGINS__REDIS__CLUSTER=true",
			"MILLRACE__PLUGINS__REDIS__USERNAME=millrace", "MILLRACE__PLUGINS__REDIS__PASSWORD=" + theirPassword,
		}
		t.Cleanup(p.kill)
		p.launch()
		r.processes = append(r.processes, p)
		if role == "broker" {
			r.brokers.to = append(r.brokers.to, p.url)
		}
	}
	for _, p := range r.processes {
		require.NoError(t, p.awaitReady(t.Context()))
	}
	return r
}

// arrive opens a room on each primary, and sends a crowd to each. Only the primary with a replica
// may lose its last writes.
func (r *clusterRun) arrive(users int) {
	r.t.Helper()
	for i := range r.primaries {
		check := checker.New(checker.Options{TokenTTL: clusterToken, Loses: i == 2})
		e := &clusterEvent{clusterRun: r, name: r.eventOn("crowd", i), check: check, report: make(chan demo.Report, 1)}
		e.set(room.Open, roomSeats)
		e.send(users)
		r.events = append(r.events, e)
	}
}

// eventOn returns the name of an event whose keys are on a primary.
func (r *clusterRun) eventOn(prefix string, primary int) string {
	for i := 0; ; i++ {
		name := fmt.Sprint(prefix, "-", i)
		slot := int(r.primaries[0].must("CLUSTER", "KEYSLOT", name).(int64))
		if slot >= primary*clusterSlots/3 && slot < (primary+1)*clusterSlots/3 {
			return name
		}
	}
}

func (e *clusterEvent) set(verb string, capacity int64) {
	e.t.Helper()
	concurrency := int64(roomConcurrency)
	e.control(e.name, room.Change{Verb: verb, Capacity: &capacity, Concurrency: &concurrency})
}

// control changes a room.
func (r *clusterRun) control(event string, c room.Change) {
	r.t.Helper()
	c.By = "test"
	_, err := r.rooms.Control(r.t.Context(), event, c)
	require.NoError(r.t, err)
}

// draws draws a pre-queue, and closes its room.
func (r *clusterRun) draws(event string) {
	r.t.Helper()
	shuffle, later := room.Shuffle, time.Now().Add(time.Hour).UnixMilli()
	r.control(event, room.Change{Verb: room.Open, Mode: &shuffle, OpensAt: &later})
	for i := range 20 {
		_, err := r.rooms.Enter(r.t.Context(), event, fmt.Sprint("user-", i), "none", 0)
		require.NoError(r.t, err)
	}
	r.control(event, room.Change{Verb: room.Open})
	r.await("the pre-queue is drawn", func() error {
		s, err := r.rooms.RoomStatus(r.t.Context(), event)
		if err == nil && s.Drawn < 20 {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	r.control(event, room.Change{Verb: room.Close})
}

// enters returns the status of the answer to a user who enters.
func (r *clusterRun) enters(event string) int {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://brokers/events/"+event+"/tickets/waiting", http.NoBody)
	require.NoError(r.t, err)
	q.Header = http.Header{userHeader: {"newcomer"}, "Accept": {"application/json"}}
	resp, err := r.brokers.RoundTrip(q)
	require.NoError(r.t, err)
	require.NoError(r.t, resp.Body.Close())
	return resp.StatusCode
}

// holder lets a user wait until admitted, and returns the lease.
func (e *clusterEvent) holder() (p room.Place) {
	e.t.Helper()
	const user, instance = "holder", "none"
	ctx := e.t.Context()
	e.check.Arrived(user, checker.Abandons)
	p, err := e.rooms.Enter(ctx, e.name, user, instance, 0)
	require.NoError(e.t, err)
	e.check.Connected(user, "connection", p.Index)
	sign := []room.Sign{{User: user, Index: p.Index}}
	e.await("the holder has a lease", func() error {
		if _, err := e.rooms.Seen(ctx, e.name, instance, sign); err != nil {
			return err
		}
		places, err := e.rooms.Claim(ctx, e.name, instance, sign)
		if err != nil || places[0].State != room.Admitted {
			return fmt.Errorf("%+v: %w", places, err)
		}
		p = places[0]
		return nil
	})
	e.check.Promoted(user, p.JTI, p.Until)
	return p
}

// extended waits until a lease ends later, and ends it.
func (e *clusterEvent) extended(lease room.Place) {
	e.t.Helper()
	const user = "holder"
	e.await("the lease is extended", func() error {
		p, err := e.rooms.Status(e.t.Context(), e.name, user)
		if err == nil && (p.JTI != lease.JTI || p.Until <= lease.Until) {
			err = fmt.Errorf("it is %+v, and was %+v", p, lease)
		}
		return err
	})
	_, err := e.rooms.Finish(e.t.Context(), e.name, user, lease.JTI, "", false)
	require.NoError(e.t, err)
	e.check.Shop(user, checker.Abandoned)
}

// send sends the crowd, which passes the room until verdict.
func (e *clusterEvent) send(users int) {
	e.t.Helper()
	const url = "http://brokers"
	shop, err := shopmiddleware.New(shopmiddleware.Options{
		URL: url, ShopToken: roomShop, Event: func(*http.Request) string { return e.name }, Client: &http.Client{Transport: &e.brokers, Timeout: 3 * time.Second},
	})
	require.NoError(e.t, err)
	e.more.Store(true)
	ctx, cancel := context.WithCancel(e.t.Context())
	ended := make(chan struct{})
	e.t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		report, err := demo.Run(ctx, demo.Options{
			Event: e.name, Users: users, Checker: e.check, URL: url, Client: &http.Client{Transport: &e.brokers}, Gate: shop,
			Status: e.sample, Progress: func(int64) {}, Habit: roomHabit, More: e.more.Load, Patience: 5 * time.Minute,
			Close: func(ctx context.Context) error {
				_, err := e.rooms.Control(ctx, e.name, room.Change{Verb: room.Close, By: "test"})
				return err
			},
		})
		if err != nil {
			report.Problems = append(report.Problems, err.Error())
		}
		e.report <- report
	}()
}

// sample returns the state of the room, or the last one that was read.
func (e *clusterEvent) sample(ctx context.Context) (room.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := e.rooms.RoomStatus(ctx, e.name)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.last = s
	}
	return e.last, nil
}

func (e *clusterEvent) status() room.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// goesOn waits until 20 more seats are sold.
func (e *clusterEvent) goesOn(what string) {
	e.t.Helper()
	want := e.status().Sold + 20
	e.await(e.name+" "+what, func() error {
		if s := e.status(); s.Sold < want {
			return fmt.Errorf("%d of %d sold: %+v", s.Sold, want, s)
		}
		return nil
	})
}

// verdict sells the last seats, and waits until all users have gone.
func (e *clusterEvent) verdict() {
	e.t.Helper()
	s := e.status()
	e.set(room.Set, s.Sold+s.Ready+s.Admitted+roomConcurrency)
	e.more.Store(false)
	select {
	case report := <-e.report:
		require.True(e.t, report.OK(), "%s: %+v\n%s", e.name, report, e.logs())
		require.NotZero(e.t, report.Reconnects)
		require.NotZero(e.t, report.Expired)
		e.t.Logf("%s: %+v", e.name, report)
	case <-time.After(8 * time.Minute):
		require.FailNow(e.t, "the crowd has not gone", "%s", e.logs())
	}
}

// restart starts a killed primary again, and creates its user again.
func (r *clusterRun) restart(primary int) {
	r.t.Helper()
	r.primaries[primary].run()
	r.primaries[primary].restrict(roomRights(r.t)...)
}

// leavesOnlyAudits waits until the nodes have nothing of the rooms but the audits.
func (r *clusterRun) leavesOnlyAudits(nodes ...*node) {
	r.t.Helper()
	r.await("the nodes have only audits", func() error {
		for _, n := range nodes {
			keys, err := n.Keys(r.t.Context(), "*").Result()
			if err != nil {
				return err
			}
			for _, key := range keys {
				empty := strings.HasPrefix(key, room.DispatchStream("")) && n.XLen(r.t.Context(), key).Val() == 0
				if !empty && !strings.HasPrefix(key, "ROOM_AUDIT:") && key != "DISPATCH_INSTANCES" && !strings.HasPrefix(key, "millrace:") {
					return fmt.Errorf("%s has %s", n.addr, key)
				}
			}
		}
		return nil
	})
}

func (r *clusterRun) await(what string, check func() error) {
	r.t.Helper()
	if err := until(r.t.Context(), 3*time.Minute, what, check); err != nil {
		require.FailNow(r.t, err.Error(), "%s", r.logs())
	}
	r.t.Log(what)
}

func (r *clusterRun) logs() string {
	var b strings.Builder
	for _, p := range r.processes {
		fmt.Fprintf(&b, "--- %s\n%s", p.config, p.log)
	}
	return b.String()
}
