package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a Redis of some sort, with a client and a key prefix that is this test's own.
type server struct {
	name   string
	addr   string
	prefix string
	client goredis.UniversalClient
}

var prefixes atomic.Int64

// eachServer runs f on miniredis, Redis and Valkey.
func eachServer(t *testing.T, f func(t *testing.T, s server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		tier.Embedded(t)
		f(t, newServer(t, "miniredis", startMini(t)))
	})
	for _, name := range []string{"redis", "valkey"} {
		t.Run(name, func(t *testing.T) { f(t, newServer(t, name, tier.Real(t, name))) })
	}
}

func startMini(t testing.TB) (addr string) {
	mini := miniredis.NewMiniRedis()
	require.NoError(t, mini.Start())
	t.Cleanup(mini.Close)
	return mini.Addr()
}

func newServer(t testing.TB, name, addr string) server {
	s := server{name: name, addr: addr, prefix: fmt.Sprintf("streams-test-%d-%d", os.Getpid(), prefixes.Add(1))}
	s.client = s.dial(t)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, pattern := range []string{s.prefix + "*", "{" + s.prefix + "*"} {
			keys, err := s.client.Keys(ctx, pattern).Result()
			if err == nil && len(keys) > 0 {
				s.client.Del(ctx, keys...)
			}
		}
	})
	return s
}

func (s server) dial(t testing.TB) goredis.UniversalClient {
	c := redis.DefaultClientConfig()
	c.Addrs = []string{s.addr}
	client, err := redis.NewClient(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (s server) kind() Kind {
	return Kind{Type: "POINT", StreamPrefix: s.prefix + ":POINT:", GroupPrefix: s.prefix + "-group:POINT:"}
}

// quick is a Config for tests: everything in milliseconds.
func quick() Config {
	c := DefaultConfig()
	c.PollInterval = 10 * time.Millisecond
	c.InitialPollInterval = time.Millisecond
	c.IdleTimeout = 300 * time.Millisecond
	c.ReconcileInterval = 25 * time.Millisecond
	c.StopTimeout = 3 * time.Second
	return c
}

// still is quick without an idle stop.
func still() Config {
	c := quick()
	c.IdleTimeout = time.Hour
	return c
}

// activeSet is an Activations in memory, with everything counted.
type activeSet struct {
	mu          sync.Mutex
	m           map[int64]Activation
	activated   int
	deactivated int
	fail        error // of Deactivate
	failActive  error
	asked       int
}

func newActiveSet(ids ...int64) *activeSet {
	s := &activeSet{m: map[int64]Activation{}}
	for _, id := range ids {
		s.m[id] = Activation{ID: id}
	}
	return s
}

func (s *activeSet) Active(context.Context) ([]Activation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.failActive != nil {
		return nil, s.failActive
	}
	var out []Activation
	for _, a := range s.m {
		out = append(out, a)
	}
	return out, nil
}

func (s *activeSet) Activate(_ context.Context, id int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activated++
	if _, ok := s.m[id]; !ok {
		s.m[id] = Activation{ID: id}
	}
	return nil
}

func (s *activeSet) Deactivate(_ context.Context, id int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deactivated++
	if s.fail != nil {
		return s.fail
	}
	delete(s.m, id)
	return nil
}

func (s *activeSet) set(a Activation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[a.ID] = a
}

func (s *activeSet) has(id int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.m[id]
	return ok
}

func (s *activeSet) counts() (activated, deactivated int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.activated, s.deactivated
}

// instance is one Manager with a client of its own, and what its route has handled.
type instance struct {
	*Manager
	client goredis.UniversalClient
	log    *lines

	mu       sync.Mutex
	handled  []string // payloads, in the order in which they were done
	runs     map[string]int
	inFlight atomic.Int64
	most     atomic.Int64
	sub      pipeline.Subscription
	wait     sync.WaitGroup
}

func newInstance(t testing.TB, s server, name string, active Activations, c Config) *instance {
	in := &instance{client: s.dial(t), log: &lines{}, runs: map[string]int{}}
	in.Manager = NewManager(Options{
		Kind: s.kind(), Config: func() Config { return c }, Client: func() goredis.UniversalClient { return in.client },
		Activations: active, Instance: name, Logger: slog.New(slog.NewTextHandler(in.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return in
}

// open runs the route: handle is called on a goroutine a message, and its error nacks.
func (in *instance) open(t testing.TB, flow pipeline.Flow, handle func(*message.Message) error) {
	sub, err := in.Source().Open(t.Context(), flow)
	require.NoError(t, err)
	in.sub = sub
	msgs, err := sub.Subscribe(context.Background(), "")
	require.NoError(t, err)
	activity := in.Activity()
	in.wait.Go(func() {
		for msg := range msgs {
			in.wait.Go(func() {
				o := pipeline.OriginFrom(msg.Context())
				activity.Began(o)
				n := in.inFlight.Add(1)
				for most := in.most.Load(); n > most && !in.most.CompareAndSwap(most, n); most = in.most.Load() {
				}
				var err error
				if handle != nil {
					err = handle(msg)
				}
				in.inFlight.Add(-1)
				if err == nil {
					in.mu.Lock()
					in.handled = append(in.handled, string(msg.Payload))
					in.runs[string(msg.Payload)]++
					in.mu.Unlock()
				}
				activity.Ended(o)
				if err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		}
	})
	t.Cleanup(func() { in.close() })
}

func (in *instance) close() {
	if in.sub != nil {
		_ = in.sub.Close()
		in.wait.Wait()
	}
}

func (in *instance) done() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.handled)
}

func (in *instance) isRunning(id int64) bool { return slices.Contains(in.Running(), id) }

// lines collects log lines.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newEntry(payload string) entry.Entry {
	return entry.Entry{Key: payload, UUID: "u-" + payload, Message: []byte(payload)}
}

func entries(from, n int) []entry.Entry {
	out := make([]entry.Entry, n)
	for i := range out {
		out[i] = newEntry(fmt.Sprint(from + i))
	}
	return out
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 15*time.Second, 2*time.Millisecond, what)
}

// hook intercepts the commands of one client.
type hook struct {
	mu     sync.Mutex
	before func(cmd goredis.Cmder) error
	after  func(cmd goredis.Cmder)
}

func (h *hook) set(before func(goredis.Cmder) error, after func(goredis.Cmder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before, h.after = before, after
}

func (h *hook) funcs() (func(goredis.Cmder) error, func(goredis.Cmder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.before, h.after
}

func (h *hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h *hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		before, after := h.funcs()
		if before != nil {
			if err := before(cmd); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		err := next(ctx, cmd)
		if after != nil {
			after(cmd)
		}
		return err
	}
}

func (h *hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		before, _ := h.funcs()
		if before != nil {
			for _, cmd := range cmds {
				if err := before(cmd); err != nil {
					for _, cmd := range cmds {
						cmd.SetErr(err)
					}
					return err
				}
			}
		}
		return next(ctx, cmds)
	}
}

var errInjected = errors.New("injected")
