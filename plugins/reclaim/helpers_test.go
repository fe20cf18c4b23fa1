package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
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
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		f(t, server{s, redistest.Prefix(t, c), c})
	})
}

// fakeReader is a Reader that records the adopted entries.
type fakeReader struct {
	mu        sync.Mutex
	free      int
	err       error
	adopted   []string
	delivered map[string]int64
}

func (r *fakeReader) Free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.free
}

func (r *fakeReader) Adopt(_ context.Context, entries []goredis.XMessage, delivered map[string]int64, _ func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	for _, e := range entries {
		r.free--
		r.adopted = append(r.adopted, e.ID)
		if r.delivered == nil {
			r.delivered = map[string]int64{}
		}
		r.delivered[e.ID] = delivered[e.ID]
	}
	return nil
}

func (r *fakeReader) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.adopted)
}

// fakeTarget is a fixed list of streams.
type fakeTarget struct {
	client  goredis.UniversalClient
	minIdle time.Duration
	streams []Stream
}

func (t *fakeTarget) Domain() string                  { return "domain" }
func (t *fakeTarget) Client() goredis.UniversalClient { return t.client }
func (t *fakeTarget) MinIdle() time.Duration          { return t.minIdle }
func (t *fakeTarget) Streams() []Stream               { return t.streams }

// stream makes a stream with a group and returns it as one of a target, read by consumer.
func (s server) stream(t testing.TB, name, consumer string, r Reader) Stream {
	st := Stream{Shard: "0", Name: s.prefix + ":" + name, Group: "g", Consumer: consumer, Reader: r}
	st.Meta = "{" + st.Name + "}:meta"
	require.NoError(t, s.client.XGroupCreateMkStream(t.Context(), st.Name, st.Group, "0").Err())
	return st
}

// hold adds n entries to a stream and has consumer read them, before another reader can.
func (s server) hold(t testing.TB, st Stream, consumer string, n int) (ids []string) {
	tx := s.client.TxPipeline()
	for i := range n {
		tx.XAdd(t.Context(), &goredis.XAddArgs{Stream: st.Name, Values: []any{"message", fmt.Sprint(i)}})
	}
	got := tx.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: st.Group, Consumer: consumer, Streams: []string{st.Name, ">"}, Count: int64(n), Block: -1})
	_, err := tx.Exec(t.Context())
	require.NoError(t, err)
	for _, m := range got.Val()[0].Messages {
		ids = append(ids, m.ID)
	}
	require.Len(t, ids, n)
	return ids
}

// release makes entries of consumer idle for minIdle at once. With a long minIdle no other entry
// becomes idle during the test, also on a slow machine.
func (s server) release(t testing.TB, st Stream, consumer string, minIdle time.Duration, ids []string) {
	n, err := poll.Consumer{Client: s.client, Stream: st.Name, Group: st.Group, Name: consumer}.Release(t.Context(), minIdle, ids...)
	require.NoError(t, err)
	require.Equal(t, len(ids), n)
}

// aging returns a function that makes an entry idle for two hours when it has seen it pending for a while and with the
// same count. A MinIdle of an hour then lasts while the machine stands still.
func (s server) aging(t testing.TB, stream, group string) func() {
	looks := map[string]int{}
	return func() {
		p, err := s.client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: stream, Group: group, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		for _, e := range p {
			state := fmt.Sprint(e.ID, " ", e.RetryCount)
			if looks[state]++; looks[state]%50 == 0 {
				_, err := poll.Consumer{Client: s.client, Stream: stream, Group: group, Name: e.Consumer}.Release(t.Context(), 2*time.Hour, e.ID)
				require.NoError(t, err)
			}
		}
	}
}

func (s server) consumers(t testing.TB, st Stream) (names []string) {
	list, err := s.client.XInfoConsumers(t.Context(), st.Name, st.Group).Result()
	require.NoError(t, err)
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names
}

// presence is the set of running instances.
type presence struct {
	mu      sync.Mutex
	alive   map[string]bool
	unknown []string // never had a presence
	err     error
}

func (p *presence) read(_ context.Context, instances ...string) (map[string]bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	out := map[string]bool{}
	for _, i := range instances {
		if !slices.Contains(p.unknown, i) {
			out[i] = p.alive[i]
		}
	}
	return out, nil
}

func (p *presence) set(instance string, alive bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive[instance] = alive
}

func present(instances ...string) *presence {
	p := &presence{alive: map[string]bool{}}
	for _, i := range instances {
		p.alive[i] = true
	}
	return p
}

func quick() Config {
	return Config{MinIdle: 50 * time.Millisecond, Interval: 20 * time.Millisecond, Count: 100, ClaimBatchSize: 10,
		DeadCheck: 10 * time.Millisecond, PresenceTimeout: 40 * time.Millisecond}
}

// rig is a Reclaimer that is not started, and its log.
type rig struct {
	*Reclaimer
	log  *redistest.Lines
	mu   sync.Mutex
	lost map[string][]string
}

func newRig(c Config, instance string, p *presence, targets ...Target) *rig {
	r := &rig{log: &redistest.Lines{}, lost: map[string][]string{}}
	r.Reclaimer = NewReclaimer(Options{
		Config: c, Instance: instance, Targets: targets, Alive: p.read, metrics: newMetrics(),
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
		Lost: func(stream string, ids []string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.lost[stream] = append(r.lost[stream], ids...)
		},
	})
	return r
}

func (r *rig) run(t testing.TB) {
	require.NoError(t, r.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
}

// realReader is a poll.Reader with a handler.
func realReader(t testing.TB, s server, st *Stream, slots int, minIdle time.Duration, handle func(*message.Message)) *poll.Reader {
	out := make(chan *message.Message)
	r := poll.NewReader(s.client, poll.Options{
		Stream: st.Name, Group: st.Group, Consumer: st.Consumer,
		Config: poll.Config{
			Concurrency: slots, BatchSize: 10,
			PollInterval: 10 * time.Millisecond, InitialPollInterval: time.Millisecond, MinIdle: minIdle,
		},
	}, out, nil, nil)
	st.Reader = r
	var handlers sync.WaitGroup
	quit := make(chan struct{})
	handlers.Go(func() {
		for {
			select {
			case msg := <-out:
				handlers.Go(func() { handle(msg); msg.Ack() })
			case <-quit:
				return
			}
		}
	})
	r.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = r.Drain(ctx)
		close(quit)
		handlers.Wait()
	})
	return r
}

// claimHash loads the script that claims and returns its hash.
func (s server) claimHash(t testing.TB) (hash string) {
	t.Helper()
	source, err := os.ReadFile("../../internal/redis/poll/lua/claim.lua")
	require.NoError(t, err)
	require.NoError(t, s.client.ScriptLoad(t.Context(), string(source)).Err())
	return goredis.NewScript(string(source)).Hash()
}

var errInjected = errors.New("injected")
