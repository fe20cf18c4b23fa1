package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// redisRig is a Redis with one domain that no other test uses, and the writer of its jobs.
type redisRig struct {
	t       testing.TB
	addr    string
	client  goredis.UniversalClient
	log     *joblog.Log
	domain  string
	config  joblog.Config
	entries *atomic.Int64     // of the shards
	web     func(*web.Config) // of the next gateways; nil: no change
}

func connect(t testing.TB, addr string) *redis.Server {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{addr}
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	return server
}

func newRedis(t testing.TB, s redistest.Server) *redisRig {
	t.Helper()
	r := &redisRig{t: t, addr: s.Addr, client: s.Client(t), config: joblog.DefaultConfig(), entries: new(atomic.Int64)}
	r.domain = redistest.Prefix(t, r.client)
	r.log = joblog.New(connect(t, s.Addr), r.config, event.DefaultStages())
	return r
}

// event returns an event of a job that is stored now.
func (r *redisRig) event(id string, n int64, stage string) event.Event {
	return event.Event{Domain: r.domain, JobID: id, Stage: stage, Seq: n, StreamID: fmt.Sprintf("%d-%d", time.Now().UnixMilli(), r.entries.Add(1))}
}

// store adds events to the log of their job.
func (r *redisRig) store(events ...event.Event) (texts []string) {
	r.t.Helper()
	for _, e := range events {
		if e.Seq == 0 {
			text, err := e.JSON()
			require.NoError(r.t, err)
			texts = append(texts, string(text))
			continue
		}
		result := r.log.Append(context.Background(), r.domain, [][]event.Event{{e}})[0]
		require.NoError(r.t, result.Err)
		texts = append(texts, result.Answers[0].Text)
	}
	return texts
}

func (r *redisRig) publish(texts ...string) {
	r.t.Helper()
	require.NoError(r.t, r.log.Publish(context.Background(), r.domain, 0, texts))
}

// add stores and publishes events.
func (r *redisRig) add(events ...event.Event) { r.publish(r.store(events...)...) }

// steps adds the numbers of a job.
func (r *redisRig) steps(id string, from, to int64) {
	for n := from; n <= to; n++ {
		r.add(r.event(id, n, "step"))
	}
}

// process is a running gateway with its public server.
type process struct {
	*Gateway
	t        testing.TB
	url      string
	tokens   *token.Plugin
	runtime  *pipeline.Runtime
	gathered *prometheus.Registry // metrics of all plugins
	client   *http.Client
}

type site struct {
	web    *web.Plugin
	tokens *token.Plugin
	hub    *sse.Hub
	make   func(s *site) *Gateway
	g      *Gateway
}

func (*site) Name() string { return "site" }

func (s *site) Register(r *pipeline.Registry) error {
	s.g = s.make(s)
	s.g.Register(r)
	r.Service("gateway", s.g)
	return nil
}

// start starts a gateway on the domain of r. Redis is at addr; empty: at that of r.
func (r *redisRig) start(addr string, change func(*Config)) *process {
	t := r.t
	t.Helper()
	if addr == "" {
		addr = r.addr
	}
	server := connect(t, addr)
	tokens, streams := token.New(), sse.New()
	key := token.KeyConfig{Kid: "test", File: t.TempDir() + "/key.pem"}
	require.NoError(t, token.CreateKey(key.File))
	tokens.Settings().(*token.Config).Keys = []token.KeyConfig{key}
	public := web.New(tokens, streams)
	c := public.Settings().(*web.Config)
	c.Listen, c.DrainWindow, c.MaxStreamsPerUser = "127.0.0.1:0", 200*time.Millisecond, 20_000
	if r.web != nil {
		r.web(c)
	}
	config := DefaultConfig()
	config.GapWait, config.LoopbackWithoutToken, config.FeedPoll = 500*time.Millisecond, true, 5*time.Millisecond
	if change != nil {
		change(&config)
	}
	require.NoError(t, config.Validate())
	s := &site{web: public, tokens: tokens, hub: streams.Hub("jobs"), make: func(s *site) *Gateway {
		return New(Options{
			Config: config, Stages: event.DefaultStages(), Shards: map[string]int{r.domain: 2, r.domain + "-other": 2}, Server: server,
			Log: joblog.New(server, r.config, event.DefaultStages()), Hub: s.hub, Tokens: tokens, Web: public, Logger: redistest.Logger(t),
		})
	}}
	registry, err := pipeline.NewRegistry(pipeline.Env{}, tokens, streams, public, s)
	require.NoError(t, err)
	require.NoError(t, registry.CheckCollectors())
	gathered := prometheus.NewRegistry()
	gathered.MustRegister(registry.Collectors()...)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{StopTimeout: 10 * time.Second})
	require.NoError(t, runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, runtime.Stop(context.Background())) })
	transport := &http.Transport{MaxIdleConnsPerHost: -1}
	t.Cleanup(transport.CloseIdleConnections)
	return &process{Gateway: s.g, t: t, url: "http://" + public.Addr(), tokens: tokens, runtime: runtime, gathered: gathered, client: &http.Client{Transport: transport}}
}

func (p *process) stop() { require.NoError(p.t, p.runtime.Stop(context.Background())) }

func (p *process) path(domain, id string) string { return p.url + "/jobs/" + domain + "/" + id }

func (p *process) reads(reason string) int {
	return int(testutil.ToFloat64(p.metrics.reads.WithLabelValues(reason)))
}

// watch is a client with the checks of its stream.
type watch struct {
	t      testing.TB
	client ssetest.Client
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	at int64 // the last number
	// got has a number, gap FROM-TO, token STATUS, state NUMBER, busy REASON or closed REASON.
	got    []string
	err    error
	closed bool
	// restarts says that a gap may take back numbers.
	restarts bool
}

var errClosed = errors.New("closed")

func (w *watch) take(e ssetest.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var data struct {
		Seq, From, To  int64
		Status, Reason string
		Entry          string `json:"stream_id"`
	}
	if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
		return err
	}
	expected := w.at + 1
	switch e.Name {
	case "event":
		w.got = append(w.got, strconv.FormatInt(data.Seq, 10))
		w.at = data.Seq
		id, _, _ := strings.Cut(e.ID, "~") // the gaps of the client follow
		if data.Seq != expected || id != strconv.FormatInt(data.Seq, 10)+"."+data.Entry {
			return fmt.Errorf("number %d with id %s follows %d", data.Seq, e.ID, expected-1)
		}
	case "gap":
		w.got = append(w.got, fmt.Sprintf("gap %d-%d", data.From, data.To))
		w.at = data.To
		c, ok := parseCursor(e.ID)
		if !ok {
			return fmt.Errorf("gap %d-%d with id %s", data.From, data.To, e.ID)
		}
		if c.at < data.From && w.restarts { // it takes numbers back
			w.at = data.From - 1
			expected = data.From
		}
		if c.at != w.at {
			return fmt.Errorf("gap %d-%d with id %s", data.From, data.To, e.ID)
		}
		if data.From != expected {
			return fmt.Errorf("gap from %d follows %d", data.From, expected-1)
		}
	case "transient":
		w.got = append(w.got, "token "+data.Status)
	case "state":
		w.got = append(w.got, "state "+strconv.FormatInt(data.Seq, 10))
	case "busy":
		w.got = append(w.got, "busy "+data.Reason)
	case "closed":
		w.got = append(w.got, "closed "+data.Reason)
		if data.Reason == "done" || data.Reason == "error" {
			w.closed = true
			return errClosed
		}
	default:
		return fmt.Errorf("unexpected event %s", e.Name)
	}
	return nil
}

// newWatch returns a client that has not connected.
func newWatch(t testing.TB, p *process, url string) *watch {
	w := &watch{t: t, done: make(chan struct{})}
	w.client = ssetest.Client{
		URL: url, HTTP: p.client, Event: w.take,
		Retry: func(time.Duration) time.Duration { return 5 * time.Millisecond },
	}
	return w
}

// run connects, and reconnects until the job ends.
func (w *watch) run() *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.err = w.client.Run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

func (p *process) watch(domain, id, query string) *watch {
	return newWatch(p.t, p, p.path(domain, id)+"/events"+query).run()
}

func (w *watch) received() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.got...)
}

// wait waits until this was received.
func (w *watch) wait(what string) *watch {
	w.t.Helper()
	redistest.Eventually(w.t, what, func() bool { return slices.Contains(w.received(), what) })
	return w
}

// ends waits for the end of the client, and checks that it was the end of the job.
func (w *watch) ends() []string {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(w.t, "the stream does not end", "%v", w.received())
	}
	require.ErrorIs(w.t, w.err, errClosed)
	return w.received()
}
