package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/token"
)

const (
	roomShop     = "the credential of a shop"
	roomOperator = "the credential of an operator"
)

// roomProcess is a process of the binary with roles of the waiting room.
type roomProcess struct {
	*service
	ops string // address of its operations server
}

// newRoomProcess writes the settings of a process into a folder. key is the file of the token key,
// and settings are more lines of plugins.waitingroom.
func newRoomProcess(dir, redisAddr, key, name, roles string, settings ...string) (*roomProcess, error) {
	web, err := freePort()
	if err != nil {
		return nil, err
	}
	ops, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &roomProcess{ops: "http://" + ops, service: &service{
		config: filepath.Join(dir, name+".yaml"), url: "http://" + web, log: &lockedBuffer{},
	}}
	return p, os.WriteFile(p.config, fmt.Appendf(nil, `
profile: broker
instance_id: %s
command_wait: 1m
log: {format: text}
plugins:
  telemetry: {listen: %q}
  redis: {addrs: [%q]}
  web: {listen: %q, drain_window: 1s, trusted_proxies: [127.0.0.1], auth: {header: X-User}}
  token: {keys: [{kid: test, file: %q}]}
  waitingroom:
    roles: [%s]
    shop_tokens: {shop: %q}
    admin_tokens: {ann: %q}
    promote_interval: 250ms
    broadcast_interval: 250ms
    %s
`, name, ops, redisAddr, web, key, roles, roomShop, roomOperator, strings.Join(settings, "\n    ")), 0o600)
}

func (p *roomProcess) awaitReady(ctx context.Context) error {
	return until(ctx, 2*time.Minute, p.config+" is ready", func() error {
		resp, err := http.Get(p.ops + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d\n%s", resp.StatusCode, p.log)
			}
		}
		return err
	})
}

// roomFleet is the processes of waiting rooms with the same settings. They have a Redis and an
// Event Service of their own. Tests share them, and each has events of its own.
type roomFleet struct {
	processes           []*roomProcess
	brokers, operations []string // addresses
	redis               *goredis.Client
	events              *roomEvents

	server     *exec.Cmd // of Redis
	serverArgs []string
	serverDone chan struct{}
}

// The fleets. All have two brokers and two dispatchers.
//
// A machine that stands still ends no place and no turn. The time of a room goes on by 5 s at most
// until the next tick, which can be before the next signs of life. So grace and ready_ttl, or with
// release seen_interval, are longer.
const (
	roomApart   = "processes with one role each"
	roomRelease = "absent: release"
	roomBrief   = "short leases"
)

var roomFleets = map[string]func() (*roomFleet, error){
	roomApart: sync.OnceValues(func() (*roomFleet, error) {
		return startRoomFleet("apart", []string{"broker", "broker", "dispatcher", "dispatcher"}, "grace: 10s", "seen_interval: 1s", "token_ttl: 10m", "ready_ttl: 10m")
	}),
	// A user whose broker is late by seen_interval loses the turn.
	roomRelease: sync.OnceValues(func() (*roomFleet, error) {
		return startRoomFleet("release", []string{"broker, dispatcher", "broker, dispatcher"}, "absent: release", "grace: 6s", "seen_interval: 6s", "token_ttl: 10m", "ready_ttl: 10m")
	}),
	roomBrief: sync.OnceValues(func() (*roomFleet, error) {
		return startRoomFleet("brief", []string{"broker, dispatcher", "broker, dispatcher"}, "grace: 1m", "seen_interval: 1s", "token_ttl: 3s", "ready_ttl: 6s")
	}),
}

// startRoomFleet starts a Redis and processes with these roles. They end with this process.
func startRoomFleet(name string, roles []string, settings ...string) (*roomFleet, error) {
	dir, err := os.MkdirTemp(workDir, "rooms-"+name+"-")
	if err != nil {
		return nil, err
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	f := &roomFleet{
		redis: goredis.NewClient(&goredis.Options{Addr: addr}), events: &roomEvents{answers: map[string]string{}, calls: map[string]int{}},
		serverArgs: []string{"--port", addr[strings.LastIndex(addr, ":")+1:], "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "always"},
	}
	if err := f.startRedis(); err != nil {
		return nil, err
	}
	ctx := context.Background()
	key := filepath.Join(dir, "key.pem")
	if err := token.CreateKey(key); err != nil {
		return nil, err
	}
	settings = append(settings, "event_service: {url: "+httptest.NewServer(f.events).URL+", timeout: 10s}")
	for i, roles := range roles {
		p, err := newRoomProcess(dir, addr, key, fmt.Sprint(name, "-", i+1), roles, settings...)
		if err != nil {
			return nil, err
		}
		f.processes, f.operations = append(f.processes, p), append(f.operations, p.ops)
		if strings.Contains(roles, "broker") {
			f.brokers = append(f.brokers, p.url)
		}
		p.cmd = exec.Command(plainBuild.path, "run", "--config", p.config)
		p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
		if p.done, err = startBound(p.cmd); err != nil {
			return nil, err
		}
	}
	for _, p := range f.processes {
		if err := p.awaitReady(ctx); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// startRedis starts the Redis of the fleet, also again.
func (f *roomFleet) startRedis() (err error) {
	f.server = exec.Command("redis-server", f.serverArgs...)
	if f.serverDone, err = startBound(f.server); err != nil {
		return err
	}
	ctx := context.Background()
	return until(ctx, time.Minute, "redis answers", func() error { return f.redis.Ping(ctx).Err() })
}

// stopRedis kills it. Its file has all writes.
func (f *roomFleet) stopRedis() {
	_ = f.server.Process.Kill()
	<-f.serverDone
}

// roomEvents is an Event Service. An event without an answer does not exist.
type roomEvents struct {
	mu      sync.Mutex
	answers map[string]string // seats, or a status from 400
	calls   map[string]int
}

func (e *roomEvents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event := strings.TrimPrefix(r.URL.Path, "/events/")
	e.mu.Lock()
	e.calls[event]++
	answer, known := e.answers[event]
	e.mu.Unlock()
	switch {
	case !known:
		http.NotFound(w, r)
	case answer == "unavailable":
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		fmt.Fprintf(w, `{"seatCount":%s}`, answer)
	}
}

func (e *roomEvents) set(event, answer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answers[event] = answer
}

func (e *roomEvents) called(event string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[event]
}

// roomStory is a test with an event of its own.
type roomStory struct {
	*roomFleet
	t     *testing.T
	event string
	env   []string // more settings of commands
}

// stories runs a test on several fleets.
func stories(t *testing.T, test func(t *testing.T, s *roomStory), fleets ...string) {
	t.Helper()
	tier.Default(t)
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("MILLRACE_TEST_REDIS: redis-server is not installed")
	}
	binary(t)
	for _, name := range fleets {
		t.Run(name, func(t *testing.T) {
			tier.Met(t, "redis")
			fleet, err := roomFleets[name]()
			require.NoError(t, err)
			test(t, &roomStory{roomFleet: fleet, t: t, event: strings.ToLower(t.Name()[4:strings.Index(t.Name(), "/")])})
		})
	}
}

// restStories runs a test of `make test-all` on fleets of its own, without and with release.
func restStories(t *testing.T, test func(t *testing.T, s *roomStory)) {
	t.Helper()
	tier.Rest(t, tier.Room)
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("MILLRACE_TEST_REDIS: redis-server is not installed")
	}
	binary(t)
	for _, absent := range []string{"keep", "release"} {
		t.Run(absent, func(t *testing.T) {
			tier.Met(t, "redis")
			fleet, err := startRoomFleet("outage-"+absent, []string{"broker", "broker", "dispatcher", "dispatcher"}, "absent: "+absent, "grace: 6s", "seen_interval: 6s", "token_ttl: 10m", "ready_ttl: 10m")
			require.NoError(t, err)
			t.Cleanup(fleet.stop)
			test(t, &roomStory{roomFleet: fleet, t: t, event: "outage"})
		})
	}
}

// stop kills all processes.
func (f *roomFleet) stop() {
	for _, p := range f.processes {
		p.kill()
	}
	f.stopRedis()
}

// key returns a key of the event.
func (s *roomStory) key(name string) string { return name + ":{" + s.event + "}" }

// user returns the id of a user. Limits of the brokers count per user.
func (s *roomStory) user(name string) string { return name + "@" + s.event }

// slots returns the free slots as the older system shows them.
func (s *roomStory) slots() string {
	return s.redis.HGet(s.t.Context(), s.key("ENTRY_QUEUE_SLOTS"), s.event).Val()
}

func (s *roomStory) await(what string, check func() error) {
	s.t.Helper()
	if err := until(s.t.Context(), 90*time.Second, what, check); err != nil {
		var logs []string
		for _, p := range s.processes {
			logs = append(logs, p.log.String())
		}
		var found roomFound
		s.operate("find", s.finds("ann"), &found)
		require.FailNow(s.t, err.Error(), "%+v\n%s", found, strings.Join(logs, "\n"))
	}
}

// equals waits until a value is the expected one.
func (s *roomStory) equals(what string, expected any, value func() any) {
	s.t.Helper()
	s.await(what, func() error {
		if got := value(); fmt.Sprint(got) != fmt.Sprint(expected) {
			return fmt.Errorf("it is %v, expected %v", got, expected)
		}
		return nil
	})
}

// send sends a request and decodes its answer. It returns status and header.
func (s *roomStory) send(method, url, body string, header http.Header, answer any) (int, http.Header) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, url, strings.NewReader(body))
	require.NoError(s.t, err)
	r.Header = header
	resp, err := direct.RoundTrip(r)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	if answer != nil && len(text) > 0 {
		require.NoError(s.t, json.Unmarshal(text, answer), "%s", text)
	}
	return resp.StatusCode, resp.Header
}

// operate sends a request of an operator.
func (s *roomStory) operate(verb, body string, answer any) int {
	s.t.Helper()
	header := http.Header{"Authorization": {"Bearer " + roomOperator}}
	status, _ := s.send(http.MethodPost, s.operations[len(s.operations)-1]+"/api/v1/rooms/"+s.event+"/"+verb, body, header, answer)
	return status
}

// query is operate for a verb that changes nothing. It repeats a request that took too long.
func (s *roomStory) query(verb, body string, answer any) {
	s.t.Helper()
	s.available(verb, func() int { return s.operate(verb, body, answer) })
}

// available repeats a request while the answer is 503. The first one may have had its effect.
func (s *roomStory) available(what string, request func() int) (status int) {
	s.t.Helper()
	s.await(what+" is answered", func() error {
		if status = request(); status == http.StatusServiceUnavailable {
			return errNotReached
		}
		return nil
	})
	return status
}

// change changes the room. fields are the rest of the JSON object.
func (s *roomStory) change(verb, fields string) (status room.Status) {
	s.t.Helper()
	require.Equal(s.t, http.StatusOK, s.operate(verb, `{"by":"eve","why":"test"`+fields+`}`, &status), verb)
	return status
}

func (s *roomStory) status() (status room.Status) {
	s.t.Helper()
	s.query("status", "", &status)
	return status
}

// roomFound is where a user stands, for an operator.
type roomFound struct {
	State  room.State
	Status string
	Index  int64 `json:"idx"`
	JTI    string
	Until  int64
	Reason string
}

func (s *roomStory) finds(user string) string { return `{"user":"` + s.user(user) + `"}` }

func (s *roomStory) find(user string) (found roomFound) {
	s.t.Helper()
	s.query("find", s.finds(user), &found)
	return found
}

// said has the fields of all stream events and answers.
type said struct {
	Event       string `json:"eventId"`
	State       room.State
	Status      string
	Index       int64 `json:"idx"`
	Resumed     bool
	Position    *int64
	Ahead       *int64
	Waiting     int64
	WaitSeconds *[2]int64
	AsOf        int64
	Now         int64
	RoomState   string
	Token, JTI  string
	Until       int64
	Text        string
	Reason      string
	RetryAfter  int64
	Error       string
}

func (s *roomStory) waiting(broker int) string {
	return s.brokers[broker] + "/events/" + s.event + "/tickets/waiting"
}

// call sends a request of a user without a stream. The path is that behind the event's.
func (s *roomStory) call(method, user string, broker int, path string) (int, said) {
	s.t.Helper()
	var answer said
	status := s.available(method, func() (status int) {
		status, answer = s.callOnce(method, user, broker, path)
		return status
	})
	return status, answer
}

// callOnce is call for a room that may be unavailable.
func (s *roomStory) callOnce(method, user string, broker int, path string) (int, said) {
	s.t.Helper()
	var answer said
	status, _ := s.send(method, s.waiting(broker)+path, "", http.Header{userHeader: {s.user(user)}, "Accept": {"application/json"}}, &answer)
	return status, answer
}

// patientGate is the gate of a shop that repeats a request while the room is unavailable. Redis may
// need longer than a request may take.
type patientGate struct {
	*shopmiddleware.Gate
	s *roomStory
}

func (p patientGate) repeat(request func() error) (err error) {
	p.s.t.Helper()
	p.s.await("the shop is answered", func() error {
		if err = request(); errors.Is(err, shopmiddleware.ErrUnavailable) {
			return err
		}
		return nil
	})
	return err
}

// Check is shopmiddleware.Gate.Check.
func (p patientGate) Check(ctx context.Context, event, raw string) (e shopmiddleware.Entry, err error) {
	p.s.t.Helper()
	err = p.repeat(func() (err error) { e, err = p.Gate.Check(ctx, event, raw); return err })
	return e, err
}

// Verify is shopmiddleware.Gate.Verify.
func (p patientGate) Verify(ctx context.Context, event, raw, session string) (e shopmiddleware.Entry, err error) {
	p.s.t.Helper()
	err = p.repeat(func() (err error) { e, err = p.Gate.Verify(ctx, event, raw, session); return err })
	return e, err
}

// Finish is shopmiddleware.Gate.Finish.
func (p patientGate) Finish(ctx context.Context, event, raw, session string, sold bool) error {
	p.s.t.Helper()
	return p.repeat(func() error { return p.Gate.Finish(ctx, event, raw, session, sold) })
}

// gate returns the gate of a shop at a broker.
func (s *roomStory) gate(broker int) patientGate {
	s.t.Helper()
	g, err := shopmiddleware.New(shopmiddleware.Options{URL: s.brokers[broker], ShopToken: roomShop, Event: func(*http.Request) string { return s.event }})
	require.NoError(s.t, err)
	return patientGate{g, s}
}

// buys verifies and finishes an entry.
func (s *roomStory) buys(broker int, raw, session string) {
	s.t.Helper()
	g := s.gate(broker)
	_, err := g.Verify(s.t.Context(), s.event, raw, session)
	require.NoError(s.t, err)
	require.NoError(s.t, g.Finish(s.t.Context(), s.event, raw, session, true))
}
