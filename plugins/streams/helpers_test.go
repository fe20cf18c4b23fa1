package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// server is a Redis with a client, and a key prefix that no other test uses.
type server struct {
	redistest.Server
	prefix string
	client goredis.UniversalClient
}

// eachServer runs f on miniredis, Redis and Valkey.
func eachServer(t *testing.T, f func(t *testing.T, s server)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s redistest.Server) { f(t, newServer(t, s)) })
}

func miniServer(t testing.TB) server { return newServer(t, redistest.Mini(t)) }

func newServer(t testing.TB, s redistest.Server) server {
	c := s.Client(t)
	return server{s, redistest.Prefix(t, c), c}
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
	m           map[string]Activation
	activated   int
	deactivated int
	fail        error // of Deactivate
	failActive  error
	reads       int
}

func newActiveSet(ids ...string) *activeSet {
	s := &activeSet{m: map[string]Activation{}}
	for _, id := range ids {
		s.m[id] = Activation{ID: id}
	}
	return s
}

func (s *activeSet) Active(context.Context) ([]Activation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.failActive != nil {
		return nil, s.failActive
	}
	var out []Activation
	for _, a := range s.m {
		out = append(out, a)
	}
	return out, nil
}

func (s *activeSet) Activate(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activated++
	if _, ok := s.m[id]; !ok {
		s.m[id] = Activation{ID: id}
	}
	return nil
}

func (s *activeSet) Deactivate(_ context.Context, id string) error {
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

func (s *activeSet) has(id string) bool {
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
	log    *redistest.Lines

	mu       sync.Mutex
	handled  []string // payloads, in the order in which they were done
	runs     map[string]int
	inFlight atomic.Int64
	most     atomic.Int64
	sub      pipeline.Subscription
	wait     sync.WaitGroup
}

func newInstance(t testing.TB, s server, name string, active Activations, c Config) *instance {
	in := &instance{client: s.Client(t), log: &redistest.Lines{}, runs: map[string]int{}}
	in.Manager = NewManager(Options{
		Kind: s.kind(), Config: func() Config { return c }, Client: func() goredis.UniversalClient { return in.client },
		Activations: active, Instance: name, Logger: slog.New(slog.NewTextHandler(in.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return in
}

// open runs the route: handle runs on a goroutine per message, and its error nacks.
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
				o := pipeline.DeliveryFrom(msg.Context()).Origin
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

// running returns the ids that have a reader here.
func (in *instance) running() (ids []string) {
	if sub := in.opened(); sub != nil {
		for _, r := range sub.list() {
			ids = append(ids, r.id)
		}
	}
	return ids
}

func (in *instance) isRunning(id string) bool { return slices.Contains(in.running(), id) }

// start starts or resizes the reader of id, as the control loop does.
func (in *instance) start(ctx context.Context, id string, total int64) error {
	sub := in.opened()
	unlock, err := sub.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return sub.startLocked(ctx, Activation{ID: id, TotalCount: total})
}

// stop stops the reader of id, as a drain does.
func (in *instance) stop(ctx context.Context, id string) error {
	return in.opened().stop(ctx, id, stopDrained)
}

// Enqueue adds one entry.
func (in *instance) Enqueue(ctx context.Context, id string, e entry.Entry) (Outcome, error) {
	return enqueueOne(ctx, in.Manager, id, e)
}

func enqueueOne(ctx context.Context, m *Manager, id string, e entry.Entry) (Outcome, error) {
	_, out, err := m.EnqueueBatch(ctx, id, []entry.Entry{e})
	return out, err
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
		before, after := h.funcs()
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
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if after != nil {
				after(cmd)
			}
		}
		return err
	}
}

var errInjected = errors.New("injected")
