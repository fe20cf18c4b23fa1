package broker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/dispatcher"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/shop"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// shopToken is the credential of the shop.
const shopToken = "credential-of-a-shop"

// world is one Redis with one event, and the processes on it.
type world struct {
	t        *testing.T
	server   redistest.Server
	admin    *goredis.Client
	rooms    *room.Store // of a shop and an operator
	options  room.Options
	event    string
	key      string        // file of the key of the tokens
	database int           // has no rooms of other tests
	cluster  []string      // addresses of its nodes; nil: a single server
	streams  int           // most streams of a broker; 0: the default
	events   string        // address of the Event Service; empty: process.known
	timeout  time.Duration // of its calls; 0: a second
	requests int           // of a user in 10 s

	log *redistest.Lines // of the processes; nil: that of the test

	mu      sync.Mutex
	brokers []*process
	next    int
}

// patience bounds each wait for a user. Many tests run at once, on a machine that may be slow.
const patience = 2 * time.Minute

// each runs a test that mostly waits on each server, in parallel with all others.
func each(t *testing.T, test func(t *testing.T, s redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		test(t, s)
	})
}

func newWorld(t *testing.T, s redistest.Server, cluster ...string) *world {
	t.Helper()
	database := s.Database(t)
	w := &world{
		t: t, server: s, admin: s.Client(t, func(o *goredis.Options) { o.DB = database }), event: "concert-1", key: t.TempDir() + "/key.pem", database: database, cluster: cluster,
		options: room.Options{
			PromoteInterval: 100 * time.Millisecond, PromoteBatch: 200, TokenTTL: 5 * time.Minute, MaxTurn: 15 * time.Minute, ReadyTTL: 2 * time.Minute, Grace: 2 * time.Minute,
			SeenInterval: 500 * time.Millisecond, ClearAfter: 24 * time.Hour, MaxEvents: 1000,
		},
	}
	require.NoError(t, token.CreateKey(w.key))
	own := w.client(s.Addr)
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	w.rooms = room.New(server, w.options)
	return w
}

func (w *world) client(addr string) redis.ClientConfig {
	c := redis.DefaultClientConfig()
	c.Addrs, c.DB = []string{addr}, w.database
	if w.cluster != nil {
		c.Addrs, c.DB, c.Cluster = w.cluster, 0, true
	}
	return c
}

// open opens the room.
func (w *world) open(capacity, concurrency int64) {
	w.t.Helper()
	_, err := w.rooms.Control(w.t.Context(), w.event, room.Change{Verb: room.Open, By: "test", Capacity: &capacity, Concurrency: &concurrency})
	require.NoError(w.t, err)
}

func (w *world) control(c room.Change) {
	w.t.Helper()
	c.By = "test"
	_, err := w.rooms.Control(w.t.Context(), w.event, c)
	require.NoError(w.t, err)
}

func (w *world) key1(name string) string { return name + ":{" + w.event + "}" }

// process is one instance with the roles that are not nil.
type process struct {
	w          *world
	name       string
	broker     *broker.Broker
	dispatcher *dispatcher.Dispatcher
	web        *web.Plugin
	runtime    *pipeline.Runtime
	registry   *pipeline.Registry
	toRedis    *redistest.Proxy
	toWeb      *redistest.Proxy // nil for a dispatcher
	dead       *pipelinetest.Recorder
	tokens     *token.Plugin
	known      func(event string) error
	killed     bool
}

// site is the plugin of a process.
type site struct {
	*process
	redis *redis.Plugin
	hub   *sse.Hub
	roles []string
}

func (*site) Name() string { return "site" }

// Confirm implements broker.Confirmer.
func (p *process) Confirm(_ context.Context, event string) error {
	if p.known == nil {
		return eventservice.ErrNoEvent
	}
	return p.known(event)
}

func (s *site) Register(r *pipeline.Registry) error {
	server := s.redis.Server(nil)
	rooms := room.New(server, s.w.options)
	series := topevents.New()
	r.Collect(series.Collectors()...)
	var events broker.Confirmer = s.process
	if s.w.events != "" {
		o := eventservice.Options{
			Config: eventservice.DefaultConfig(), Rooms: rooms, Confirm: true, Fetch: slices.Contains(s.roles, "dispatcher"), Log: r.Env().Logger,
		}
		o.URL, o.Timeout = s.w.events, cmp.Or(s.w.timeout, time.Second)
		service, err := eventservice.New(o)
		if err != nil {
			return err
		}
		r.Service("eventservice", service)
		r.Collect(service.Collectors()...)
		events = service
	}
	for _, role := range s.roles {
		if role == "dispatcher" {
			c := dispatcher.DefaultConfig()
			c.PromoteInterval = s.w.options.PromoteInterval
			s.dispatcher = dispatcher.New(dispatcher.Options{Config: c, Rooms: rooms, Redis: s.redis, Server: server, DeadLetter: s.dead, Labels: series})
			s.dispatcher.Register(r)
			r.Offer(reclaim.Shards(s.dispatcher.Family()))
			continue
		}
		s.broker = broker.New(broker.Options{
			Config: broker.Config{BroadcastInterval: 100 * time.Millisecond, RequestsPerUser: s.w.requests}, SeenInterval: s.w.options.SeenInterval,
			Rooms: rooms, Events: events, Redis: s.redis, Server: server, Hub: s.hub, Tokens: s.tokens, Web: s.web, DeadLetter: s.dead,
			Labels: series,
		})
		s.broker.Register(r)
		r.Offer(reclaim.Shards(s.broker.Family()))
		shop.New(rooms, s.tokens, series, map[string]setting.Secret{"web": setting.NewSecret(shopToken)}, r.Env().Logger).Register(r, s.web)
	}
	return nil
}

// start starts a process with roles.
func (w *world) start(name string, roles ...string) *process {
	t := w.t
	t.Helper()
	shared, tokens, streams := redis.New(), token.New(), sse.New()
	p := &process{
		w: w, name: name + "-" + watermill.NewShortUUID(), toRedis: redistest.NewProxy(t, w.server.Addr), dead: pipelinetest.NewRecorder("dead"), tokens: tokens,
	}
	rc := shared.Settings().(*redis.Config)
	rc.ClientConfig = w.client(p.toRedis.Addr())
	rc.PollInterval, rc.InitialPollInterval = 20*time.Millisecond, time.Millisecond
	tokens.Settings().(*token.Config).Keys = []token.KeyConfig{{Kid: "test", File: w.key}}
	p.web = web.New(tokens, streams)
	wc := p.web.Settings().(*web.Config)
	wc.Listen, wc.DrainWindow, wc.Auth.Header, wc.TrustedProxies = "127.0.0.1:0", 100*time.Millisecond, "X-User", []string{"127.0.0.0/8"}
	if w.streams > 0 {
		wc.MaxStreams = w.streams
	}
	s := &site{process: p, redis: shared, hub: streams.Hub("room"), roles: roles}
	log := redistest.Logger(t)
	if w.log != nil {
		log = slog.New(slog.NewTextHandler(w.log, nil))
	}
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: p.name, Logger: log}, shared, reclaim.New(shared), tokens, streams, p.web, s)
	require.NoError(t, err)
	require.NoError(t, registry.CheckCollectors())
	p.registry = registry
	chain := middleware.New(registry, middleware.Options{})
	p.runtime = pipeline.NewRuntime(registry, pipeline.RuntimeOptions{Wrap: chain.Wrap, StopTimeout: time.Minute})
	require.NoError(t, p.runtime.Start(t.Context()))
	t.Cleanup(p.stop)
	if p.broker != nil {
		p.toWeb = redistest.NewProxy(t, p.web.Addr())
		w.mu.Lock()
		w.brokers = append(w.brokers, p)
		w.mu.Unlock()
	}
	return p
}

func (p *process) stop() {
	if !p.killed {
		require.NoError(p.w.t, p.runtime.Stop(context.Background()))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	_ = p.runtime.Stop(ctx)
}

// kill cuts a process off from Redis and from its users, indefinitely.
func (p *process) kill() {
	p.killed = true
	p.toRedis.SetDown(true)
	if p.toWeb == nil {
		return
	}
	p.w.mu.Lock()
	for i, b := range p.w.brokers {
		if b == p {
			p.w.brokers = append(p.w.brokers[:i:i], p.w.brokers[i+1:]...)
			break
		}
	}
	p.w.mu.Unlock()
	p.toWeb.SetDown(true)
}

// transport connects each request to the next broker.
func (w *world) transport() *http.Transport {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		w.mu.Lock()
		b := w.brokers[w.next%len(w.brokers)]
		w.next++
		w.mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, network, b.toWeb.Addr())
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// guest is a user with one stream, which reconnects until its end.
type guest struct {
	w      *world
	name   string
	client ssetest.Client
	cancel context.CancelFunc
	done   chan struct{}
	// promoted is called once, with the first token. It may be nil.
	promoted func(jti string)
	shuffled bool // a draw gives another index

	mu      sync.Mutex
	id      string // of the last connected event
	index   int64
	shown   int64 // the last position of this connection
	events  []string
	entries []ticket
	now     int64 // of the server, with the first token
	err     error
}

type ticket struct {
	Token, JTI string
	Until      int64
}

// guest returns a user that has not connected.
func (w *world) guest(name string) *guest {
	g := &guest{w: w, name: name, done: make(chan struct{})}
	g.client = ssetest.Client{
		URL: "http://room/events/" + w.event + "/tickets/waiting", HTTP: &http.Client{Transport: w.transport()}, Header: http.Header{"X-User": {name}},
		Opened: func(*http.Response) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.shown = 0
		},
		Event: g.take, Retry: func(time.Duration) time.Duration { return 20 * time.Millisecond },
	}
	return g
}

// run connects, and reconnects until the place has ended.
func (g *guest) run() *guest {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel = cancel
	go func() {
		defer close(g.done)
		g.err = g.client.Run(ctx)
	}()
	g.w.t.Cleanup(func() {
		cancel()
		<-g.done
	})
	return g
}

// leave closes the stream, and returns the id that the client presents when it returns.
func (g *guest) leave() (id string) {
	g.cancel()
	<-g.done
	return g.client.LastEventID
}

func (g *guest) take(e ssetest.Event) error {
	var data struct {
		ticket
		State, Text, Reason string
		Idx, Position, Now  int64
	}
	if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch e.Name {
	case "connected":
		if e.ID == "" {
			return errors.New("connected has no id")
		}
		g.id = e.ID
		if g.index != 0 && g.index != data.Idx && !g.shuffled {
			return fmt.Errorf("the index was %d and is %d", g.index, data.Idx)
		}
		g.index = data.Idx
		g.events = append(g.events, "connected "+data.State)
	case "position":
		if g.shown > 0 && data.Position > g.shown {
			return fmt.Errorf("the position rises from %d to %d", g.shown, data.Position)
		}
		g.shown = data.Position
		g.events = append(g.events, fmt.Sprint("position ", data.Position))
	case "promoted":
		if data.Now == 0 || data.Now >= data.Until {
			return fmt.Errorf("the server's time is %d", data.Now)
		}
		if len(g.entries) > 0 && g.entries[0].JTI != data.JTI {
			return errors.New("another lease")
		}
		if len(g.entries) == 0 {
			g.now = data.Now
		}
		g.entries = append(g.entries, data.ticket)
		g.events = append(g.events, "promoted")
		if len(g.entries) == 1 && g.promoted != nil {
			go g.promoted(data.JTI)
		}
	case "message":
		g.events = append(g.events, "message "+data.Text)
	default:
		g.events = append(g.events, e.Name+" "+data.Reason)
	}
	return nil
}

// lastID returns the id of the last connected event.
func (g *guest) lastID() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.id
}

// idx returns the index of the place.
func (g *guest) idx() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.index
}

// ticket returns what the i-th promoted event brought.
func (g *guest) ticket(i int) ticket {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries[i]
}

// seen returns whether an event was received.
func (g *guest) seen(event string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		if e == event || strings.HasSuffix(event, "*") && strings.HasPrefix(e, strings.TrimSuffix(event, "*")) {
			return true
		}
	}
	return false
}

func (g *guest) wait(event string) *guest {
	g.w.t.Helper()
	require.Eventually(g.w.t, func() bool { return g.seen(event) || g.ended() }, patience, 5*time.Millisecond, "%s: %s", g.name, event)
	if !g.seen(event) {
		<-g.done
		require.FailNow(g.w.t, "the stream has ended", "%s: %s in %v, %v", g.name, event, g.events, g.err)
	}
	return g
}

func (g *guest) ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// ends waits until the stream has ended for good.
func (g *guest) ends() {
	g.w.t.Helper()
	select {
	case <-g.done:
		require.NoError(g.w.t, g.err, g.name)
	case <-time.After(patience):
		g.mu.Lock()
		defer g.mu.Unlock()
		require.FailNow(g.w.t, "the stream does not end", "%s: %v", g.name, g.events)
	}
}

// count returns how often an event was received.
func (g *guest) count(event string) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.events {
		if strings.HasPrefix(e, strings.TrimSuffix(event, "*")) {
			n++
		}
	}
	return n
}
