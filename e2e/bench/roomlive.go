package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

const (
	streamType = "text/event-stream"
	jsonType   = "application/json"
	stuckUsers = 10
)

// waitRequest enters a waiting room.
func waitRequest(addr, event, user, accept string) string {
	return "GET /events/" + event + "/tickets/waiting HTTP/1.1\r\nHost: " + addr + "\r\nX-User: " + user + "\r\nAccept: " + accept + "\r\n\r\n"
}

// roomRun is a broker and a dispatcher on an empty Redis. They are one process, or two.
type roomRun struct {
	*trial
	broker    streamServer
	processes []*process
	rooms     *room.Store
	phases    []int // promotions of each
	phase     int   // the next one
}

// beginRoom starts the processes.
func (t *trial) beginRoom(ctx context.Context, together bool) *roomRun {
	t.emptyRedis(ctx)
	r := &roomRun{trial: t}
	_, r.rooms = t.openRooms(ctx)
	settings := map[string]any{
		"plugins.web.trusted_proxies": []string{"127.0.0.1"}, "plugins.web.auth.header": "X-User", "plugins.waitingroom.unknown_events": "refuse",
	}
	if together {
		settings["plugins.waitingroom.roles"] = []string{brokerPart, dispatcherPart}
	} else {
		r.processes = append(r.processes, t.startRole(ctx, dispatcherPart, map[string]any{"plugins.telemetry.listen": unusedAddress(ctx)}))
	}
	r.broker = t.startStreams(ctx, brokerPart, settings)
	r.processes = append(r.processes, r.broker.process)
	return r
}

// open opens a room, or changes it.
func (r *roomRun) open(ctx context.Context, event string, capacity, perMinute int64) {
	must(r.rooms.Control(ctx, event, room.Change{Verb: room.Open, By: "bench", Why: "bench", Capacity: &capacity, PerMinute: &perMinute}))
}

// compareLiveRoom measures the way from a promotion to the user.
func compareLiveRoom(ctx context.Context, t *trial) {
	r := t.beginRoom(ctx, false)
	half := t.promoted * int(t.half.Seconds())
	r.phases = []int{t.promoted * 3, half, half}
	r.open(ctx, crowdEvent, 0, int64(60*t.promoted))
	began := time.Now()
	watchers := t.watch(ctx, watchConfig{Addr: r.broker.addr, Room: crowdEvent, Jobs: t.live, Clients: 1, Deliveries: r.phases})
	t.figure("room-live-enter", float64(t.live)/time.Since(began).Seconds())
	r.processes = append(r.processes, watchers)
	r.promote(ctx)
	t.figure("room-live-memory", r.broker.perConnection(t.live))
	var alone, slow delays
	inRandomOrder(func() { alone = r.alone(ctx) }, func() { slow = r.withStuck(ctx) })
	t.figure("room-live-p50", alone.P50)
	t.figure("room-live-p99", alone.P99)
	t.figure("room-live-slow", slow.P99, alone.P99)
}

// promote promotes the users of the next phase, and waits until all of them have received it.
func (r *roomRun) promote(ctx context.Context) delays {
	phase, capacity := r.phase, 0
	r.phase++
	for _, n := range r.phases[:r.phase] {
		capacity += n
	}
	r.logf("  %d promotions", r.phases[phase])
	r.open(ctx, crowdEvent, int64(capacity), int64(60*r.promoted))
	var arrived []arrival
	r.processes[len(r.processes)-1].awaitReport(ctx, phaseReport(phase), &arrived)
	leases := must(r.redis.HGetAll(ctx, "ENTRY_RECORD:{"+crowdEvent+"}").Result())
	var all []float64
	for _, t := range arrived {
		var lease struct{ Since int64 }
		check(json.Unmarshal([]byte(leases[roomUser(t.Client)]), &lease))
		all = append(all, float64(t.At)/1000-float64(lease.Since))
	}
	return delaysOf(all)
}

// alone is a phase in which all users read. It also reports the p99 of all scripts.
func (r *roomRun) alone(ctx context.Context) delays {
	r.emptyStats(ctx)
	began, before := time.Now(), r.cpu()
	d := r.promote(ctx)
	took := time.Since(began).Seconds()
	for i, used := range r.cpu() {
		name := []string{dispatcherPart, brokerPart, "watchers", "Redis"}[i]
		r.other("live streams: CPU of "+name, "%.0f %% of a core", 100*(used-before[i]).Seconds()/took)
	}
	r.figure("room-live-script", r.scriptLatency(ctx).p99)
	return d
}

// cpu returns the CPU time of the processes, and of Redis, so far.
func (r *roomRun) cpu() (used []time.Duration) {
	for _, p := range r.processes {
		used = append(used, p.cpu())
	}
	return append(used, r.redisCPU())
}

// withStuck is a phase with users that read nothing. The phase begins when the broker has
// disconnected the first of them. Another one follows each of them.
func (r *roomRun) withStuck(ctx context.Context) (d delays) {
	var stuck []func(context.Context)
	for i := range stuckUsers {
		stuck = append(stuck, func(ctx context.Context) {
			check(sleep(ctx, time.Duration(i)*time.Second/2))
			keepStuck(ctx, func() net.Conn { return r.stuck(fmt.Sprintf("stuck-%d", i)) })
		})
	}
	while(ctx, func(ctx context.Context) {
		r.broker.awaitMetric(ctx, "the broker has disconnected no user that reads nothing", `millrace_sse_closed_total{hub="room",reason="slow"}`)
		d = r.promote(ctx)
	}, stuck...)
	return d
}

// stuck opens a stream by HTTP/2, and lets the broker send a few bytes of it.
func (r *roomRun) stuck(user string) net.Conn {
	const settings, headers = 4, 1 // types of frames
	frame := func(kind, flags, stream byte, payload []byte) []byte {
		return append([]byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, stream}, payload...) //nolint:gosec // it is short
	}
	text := func(s string) string { return string(rune(len(s))) + s } // shorter than 127 bytes
	// GET, http, the path, the host, and two other fields.
	fields := "\x82\x86\x04" + text("/events/"+crowdEvent+"/tickets/waiting") + "\x01" + text(r.broker.addr) +
		"\x00" + text("accept") + text(streamType) + "\x00" + text("x-user") + text(user)
	window := []byte{0, 4, 0, 0, 1, 0} // the initial window has 256 bytes
	const acknowledged, complete = 1, 5
	request := slices.Concat([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		frame(settings, 0, 0, window), frame(settings, acknowledged, 0, nil), frame(headers, complete, 1, []byte(fields)))
	conn := must(net.Dial("tcp", r.broker.addr)) //nolint:noctx // on this machine
	must(conn.Write(request))
	return conn
}

// comparePolling measures users that enter without a stream.
func comparePolling(ctx context.Context, t *trial) {
	r := t.beginRoom(ctx, false)
	r.open(ctx, crowdEvent, 0, 1)
	const clients = 32
	var next atomic.Int64
	var mu sync.Mutex
	var all []float64
	began := time.Now()
	together(ctx, clients, func(ctx context.Context, _ int) {
		conn := must((&net.Dialer{}).DialContext(ctx, "tcp", r.broker.addr))
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
		reader := bufio.NewReader(conn)
		var own []float64
		for i := int(next.Add(1)) - 1; i < t.polling; i = int(next.Add(1)) - 1 {
			sent := time.Now()
			must(io.WriteString(conn, waitRequest(r.broker.addr, crowdEvent, roomUser(i), jsonType)))
			answer, err := http.ReadResponse(reader, nil)
			check(err)
			text := must(io.ReadAll(answer.Body))
			_ = answer.Body.Close()
			expect(answer.StatusCode == http.StatusOK, "the broker answered %s: %s", answer.Status, text)
			own = append(own, millis(time.Since(sent)))
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, own...)
	})
	t.figure("room-poll-enter", float64(t.polling)/time.Since(began).Seconds())
	t.other(fmt.Sprintf("users that enter over HTTP without a stream, %d at a time", clients), "p50 %s ms, p99 %s ms", number(quantile(all, 0.5)), number(quantile(all, 0.99)))
}

// compareIdleRooms measures what events without users cost a process that has both roles.
func compareIdleRooms(ctx context.Context, t *trial) {
	r := t.beginRoom(ctx, true)
	shares := func(what string) (both float64) {
		check(sleep(ctx, t.quiet/2))
		began, before := time.Now(), r.cpu()
		check(sleep(ctx, t.observed))
		took, shares := time.Since(began).Seconds(), []float64{}
		for i, used := range r.cpu() {
			shares = append(shares, 100*(used-before[i]).Seconds()/took)
		}
		t.other(what+": CPU of the process, and of Redis", "%.2f %%, %.2f %%", shares[0], shares[1])
		return shares[0] + shares[1]
	}
	before := shares("no event")
	for i := range t.rooms {
		r.open(ctx, fmt.Sprintf("event-%d", i), 100, 60)
	}
	t.figure("room-idle-cpu", max(0.01, shares(fmt.Sprintf("%d events without users", t.rooms))-before))
}
