package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis"
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
	env                 *environment
	broker              *process
	processes           []*process
	brokerAt, tickingAt streamServer
	server              *redis.Server
	rooms               *room.Rooms
}

// beginRoom starts the processes. The caller stops the run, also after an error.
func (e *environment) beginRoom(ctx context.Context, together bool) (r *roomRun, err error) {
	r = &roomRun{env: e}
	if err := e.emptyRedis(ctx); err != nil {
		return r, err
	}
	if r.server, r.rooms, err = e.openRooms(ctx, time.Second); err != nil {
		return r, err
	}
	if r.brokerAt, err = unusedStreamServer(ctx); err != nil {
		return r, err
	}
	keys, err := e.tokenKeys()
	if err != nil {
		return r, err
	}
	settings := map[string]any{
		"plugins.telemetry.listen": r.brokerAt.operations, "plugins.web.listen": r.brokerAt.addr, "plugins.web.drain_window": "1s",
		"plugins.web.trusted_proxies": []string{"127.0.0.1"}, "plugins.web.auth.header": "X-User", "plugins.token.keys": keys,
		"plugins.waitingroom.unknown_events": "refuse",
	}
	r.tickingAt = r.brokerAt
	if together {
		settings["plugins.waitingroom.roles"] = []string{brokerPart, dispatcherPart}
	} else {
		if r.tickingAt, err = unusedStreamServer(ctx); err != nil {
			return r, err
		}
		ticking, err := e.startRole(ctx, dispatcherPart, map[string]any{"plugins.telemetry.listen": r.tickingAt.operations})
		r.processes = append(r.processes, ticking)
		if err != nil {
			return r, err
		}
	}
	r.broker, err = e.startRole(ctx, brokerPart, settings)
	r.processes = append(r.processes, r.broker)
	return r, err
}

const brokerPart, dispatcherPart = "broker", "dispatcher"

func (r *roomRun) stop() {
	for i := range r.processes {
		if p := r.processes[len(r.processes)-1-i]; p != nil {
			p.stop()
		}
	}
	if r.server != nil {
		_ = r.server.Stop(context.Background())
	}
}

// open opens a room, or changes it.
func (r *roomRun) open(ctx context.Context, event string, capacity, perMinute int64) error {
	_, err := r.rooms.Control(ctx, event, room.Change{Verb: room.Open, By: "bench", Why: "bench", Capacity: &capacity, PerMinute: &perMinute})
	return err
}

// live is a room whose users all have a stream.
type live struct {
	*roomRun
	size   sizes
	phases []int // promotions of each
	phase  int   // the next one
}

// phaseEnd follows the report of a phase, which is long.
func phaseEnd(phase int) string { return fmt.Sprintf("end of phase %d\n", phase) }

// arrival is the promotion of a client.
type arrival struct {
	Client int
	At     int64 // the time at which the client received it, in µs
}

// compareLiveRoom measures the way from a promotion to the user.
func compareLiveRoom(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.beginRoom(ctx, false)
	defer r.stop()
	if err != nil {
		return nil, err
	}
	half := s.promoted * int(s.half.Seconds())
	l := &live{roomRun: r, size: s, phases: []int{s.promoted * 3, half, half}}
	before, err := memory(r.broker.cmd.Process.Pid, "VmRSS")
	if err != nil {
		return nil, err
	}
	entered, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := l.promote(ctx); err != nil {
		return nil, err
	}
	resident, err := memory(r.broker.cmd.Process.Pid, "VmRSS")
	if err != nil {
		return nil, err
	}
	var alone, slow delays
	var script float64
	order := []func() error{
		func() (err error) {
			alone, script, err = l.alone(ctx)
			return err
		},
		func() (err error) {
			slow, err = l.withStuck(ctx)
			return err
		},
	}
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, half := range order {
		if err := half(); err != nil {
			return nil, err
		}
	}
	return map[string]pair{
		"room-live-enter": {ours: entered}, "room-live-p50": {ours: alone.P50}, "room-live-p99": {ours: alone.P99},
		"room-live-slow": {slow.P99, alone.P99}, "room-live-script": {ours: script},
		"room-live-memory": {ours: float64(resident-before) / 1024 / float64(s.live)},
	}, nil
}

// connect opens the streams of all users. It returns their number per second.
func (l *live) connect(ctx context.Context) (float64, error) {
	if err := l.open(ctx, crowdEvent, 0, int64(60*l.size.promoted)); err != nil {
		return 0, err
	}
	config, err := json.Marshal(watchConfig{Addr: l.brokerAt.addr, Room: crowdEvent, Jobs: l.size.live, Clients: 1, Deliveries: l.phases})
	if err != nil {
		return 0, err
	}
	began := time.Now()
	watchers, err := start("watchers", l.env.self, "watch", string(config))
	l.processes = append(l.processes, watchers)
	if err != nil {
		return 0, err
	}
	err = watchers.await(ctx, "connected\n")
	return float64(l.size.live) / time.Since(began).Seconds(), err
}

// promote promotes the users of the next phase, and waits until all of them have received it.
func (l *live) promote(ctx context.Context) (d delays, err error) {
	phase, capacity := l.phase, 0
	l.phase++
	for _, n := range l.phases[:l.phase] {
		capacity += n
	}
	fmt.Fprintf(l.env.log, "  %d promotions\n", l.phases[phase])
	if err := l.open(ctx, crowdEvent, int64(capacity), int64(60*l.size.promoted)); err != nil {
		return d, err
	}
	watchers := l.processes[len(l.processes)-1]
	waiting, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("refused: the users did not receive all promotions"))
	err = watchers.await(waiting, phaseEnd(phase))
	cancel()
	if err != nil {
		return d, err
	}
	_, text, _ := strings.Cut(watchers.out.String(), phaseReport(phase))
	var arrived []arrival
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&arrived); err != nil {
		return d, err
	}
	leases, err := l.env.redis.HGetAll(ctx, "ENTRY_RECORD:{"+crowdEvent+"}").Result()
	if err != nil {
		return d, err
	}
	var all []float64
	for _, t := range arrived {
		var lease struct{ Since int64 }
		if err := json.Unmarshal([]byte(leases[roomUser(t.Client)]), &lease); err != nil {
			return d, fmt.Errorf("refused: lease of user %d: %w", t.Client, err)
		}
		all = append(all, float64(t.At)/1000-float64(lease.Since))
	}
	return delays{quantile(all, 0.5), quantile(all, 0.99)}, nil
}

// alone is a phase in which all users read. It also returns the p99 of all scripts in ms.
func (l *live) alone(ctx context.Context) (d delays, script float64, err error) {
	if err := l.env.emptyStats(ctx); err != nil {
		return d, 0, err
	}
	began, before := time.Now(), l.cpu()
	if d, err = l.promote(ctx); err != nil {
		return d, 0, err
	}
	took, n := time.Since(began).Seconds(), len(before)
	for i, used := range l.cpu() {
		name := []string{dispatcherPart, brokerPart, "watchers", "Redis"}[i]
		l.env.figure("live streams: CPU of "+name, "%.0f %% of a core", 100*(used-before[min(i, n-1)]).Seconds()/took)
	}
	scripts, err := l.env.scriptLatency(ctx)
	return d, scripts.p99, err
}

// cpu returns the CPU time of the processes, and of Redis, so far.
func (l *live) cpu() []time.Duration {
	used := make([]time.Duration, 0, len(l.processes)+1)
	for _, p := range l.processes {
		used = append(used, cpuTime(p.cmd.Process.Pid))
	}
	return append(used, l.env.redisCPU())
}

// withStuck is a phase with users that read nothing. The phase begins when the broker has
// disconnected the first of them. Another one follows each of them.
func (l *live) withStuck(ctx context.Context) (d delays, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	loops, ctx := errgroup.WithContext(ctx)
	for i := range stuckUsers {
		loops.Go(func() error {
			if err := sleep(ctx, time.Duration(i)*time.Second/2); err != nil {
				return unlessOver(ctx, err)
			}
			return keepStuck(ctx, func() (net.Conn, error) { return l.stuck(fmt.Sprintf("stuck-%d", i)) })
		})
	}
	ended, stop := context.WithTimeoutCause(ctx, time.Minute, errors.New("refused: the broker has disconnected no user that reads nothing"))
	err = until(ended, 100*time.Millisecond, func() (bool, error) {
		slow, err := l.brokerAt.metric(ctx, `millrace_sse_closed_total{hub="room",reason="slow"}`)
		return slow > 0, err
	})
	stop()
	if err == nil {
		d, err = l.promote(ctx)
	}
	cancel()
	return d, errors.Join(loops.Wait(), err)
}

// stuck opens a stream by HTTP/2, and lets the broker send a few bytes of it.
func (l *live) stuck(user string) (net.Conn, error) {
	const settings, headers = 4, 1 // types of frames
	frame := func(kind, flags, stream byte, payload []byte) []byte {
		return append([]byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, stream}, payload...) //nolint:gosec // it is short
	}
	text := func(s string) string { return string(rune(len(s))) + s } // shorter than 127 bytes
	// GET, http, the path, the host, and two other fields.
	fields := "\x82\x86\x04" + text("/events/"+crowdEvent+"/tickets/waiting") + "\x01" + text(l.brokerAt.addr) +
		"\x00" + text("accept") + text(streamType) + "\x00" + text("x-user") + text(user)
	window := []byte{0, 4, 0, 0, 1, 0} // the initial window has 256 bytes
	const acknowledged, complete = 1, 5
	request := slices.Concat([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		frame(settings, 0, 0, window), frame(settings, acknowledged, 0, nil), frame(headers, complete, 1, []byte(fields)))
	conn, err := net.Dial("tcp", l.brokerAt.addr) //nolint:noctx // on this machine
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(request)
	return conn, err
}

// comparePolling measures users that enter without a stream.
func comparePolling(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.beginRoom(ctx, false)
	defer r.stop()
	if err != nil {
		return nil, err
	}
	if err := r.open(ctx, crowdEvent, 0, 1); err != nil {
		return nil, err
	}
	const clients = 32
	var next atomic.Int64
	var mu sync.Mutex
	var all []float64
	began := time.Now()
	work, ctx := errgroup.WithContext(ctx)
	for range clients {
		work.Go(func() error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.brokerAt.addr)
			if err != nil {
				return err
			}
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			reader := bufio.NewReader(conn)
			var own []float64
			for i := int(next.Add(1)) - 1; i < s.polling; i = int(next.Add(1)) - 1 {
				sent := time.Now()
				if err := exchange(conn, reader, waitRequest(r.brokerAt.addr, crowdEvent, roomUser(i), jsonType)); err != nil {
					return err
				}
				own = append(own, time.Since(sent).Seconds()*1000)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return nil, err
	}
	rate := float64(s.polling) / time.Since(began).Seconds()
	e.figure(fmt.Sprintf("users that enter over HTTP without a stream, %d at a time", clients), "p50 %s ms, p99 %s ms", number(quantile(all, 0.5)), number(quantile(all, 0.99)))
	return map[string]pair{"room-poll-enter": {ours: rate}}, nil
}

// exchange sends a request and reads the answer, which must be 200.
func exchange(conn io.Writer, reader *bufio.Reader, request string) error {
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	answer, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("refused: the broker answered %s: %s", answer.Status, text)
	}
	return err
}

// compareIdleRooms measures what events without users cost a process that has both roles.
func compareIdleRooms(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.beginRoom(ctx, true)
	defer r.stop()
	if err != nil {
		return nil, err
	}
	shares := func(what string) (both float64, err error) {
		if err := sleep(ctx, s.quiet/2); err != nil {
			return 0, err
		}
		began, own, server := time.Now(), cpuTime(r.broker.cmd.Process.Pid), e.redisCPU()
		if err := sleep(ctx, s.observed); err != nil {
			return 0, err
		}
		took := time.Since(began).Seconds()
		share := func(used time.Duration) float64 { return 100 * used.Seconds() / took }
		a, b := share(cpuTime(r.broker.cmd.Process.Pid)-own), share(e.redisCPU()-server)
		e.figure(what+": CPU of the process, and of Redis", "%.2f %%, %.2f %%", a, b)
		return a + b, nil
	}
	before, err := shares("no event")
	if err != nil {
		return nil, err
	}
	for i := range s.rooms {
		if err := r.open(ctx, fmt.Sprintf("event-%d", i), 100, 60); err != nil {
			return nil, err
		}
	}
	after, err := shares(fmt.Sprintf("%d events without users", s.rooms))
	return map[string]pair{"room-idle-cpu": {ours: max(0.01, after-before)}}, err
}
