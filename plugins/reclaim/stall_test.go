package reclaim

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// proxy is a TCP proxy in front of a server that can stop answering.
type proxy struct {
	net.Listener
	wg      sync.WaitGroup
	mu      sync.Mutex
	conns   []net.Conn
	hanging bool
	moves   *sync.Cond
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: ln}
	p.moves = sync.NewCond(&p.mu)
	p.wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			p.wg.Go(func() { p.pump(in, out) })
			p.wg.Go(func() { p.pump(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		p.hang(false)
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// hang makes all connections, old and new, silent and open, or lets them go on.
func (p *proxy) hang(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hanging = yes
	p.moves.Broadcast()
}

func (p *proxy) pump(dst, src net.Conn) {
	buf := make([]byte, 4096)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		for p.hanging {
			p.moves.Wait()
		}
		p.mu.Unlock()
		if _, werr := dst.Write(buf[:n]); err != nil || werr != nil {
			_ = dst.Close()
			_, _ = io.Copy(io.Discard, src)
			return
		}
	}
}

// waves has entries become idle in a stream again and again, and waits until each lot was claimed.
func waves(t *testing.T, s server, st Stream, r *fakeReader, lots int) {
	t.Helper()
	for range lots {
		before := len(r.got())
		s.hold(t, st, "alive-3-0", 3)
		redistest.Eventually(t, "claimed", func() bool { return len(r.got()) == before+3 })
	}
}

// acking is a fakeReader that acknowledges what it is given at once.
type acking struct {
	*fakeReader
	s  server
	st Stream
}

func (a acking) Adopt(ctx context.Context, entries []goredis.XMessage, delivered map[string]int64, acked func()) error {
	for _, e := range entries {
		if err := a.s.client.XAck(ctx, a.st.Name, a.st.Group, e.ID).Err(); err != nil {
			return err
		}
		acked()
	}
	return a.fakeReader.Adopt(ctx, entries, delivered, acked)
}

// acked makes a stream with a reader that acknowledges at once.
func (s server) acked(t testing.TB, name string, r *fakeReader) Stream {
	st := s.stream(t, name, "me-1-0", nil)
	st.Reader = acking{r, s, st}
	return st
}

// A domain whose server does not answer delays no other. Its calls end with an error, which is
// logged and counted. It is served when the server answers again.
func TestAStalledDomainDelaysNoOther(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		p := newProxy(t, s.Addr)
		c := redis.DefaultClientConfig()
		c.Addrs = []string{p.Addr().String()}
		behind, err := redis.NewClient(c, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = behind.Close() })
		good, stalled := &fakeReader{free: 1000}, &fakeReader{free: 1000}
		here, there := s.acked(t, "scan", good), s.acked(t, "chat", stalled)
		r := newRig(quick(), "me-1", present("alive-3"),
			&fakeTarget{client: s.client, streams: []Stream{here}}, &named{"chat", &fakeTarget{client: behind, streams: []Stream{there}}})
		r.call = 2 * time.Second
		stood := redistest.StoodStill(t, 500*time.Millisecond)
		r.run(t)
		waves(t, s, there, stalled, 1)
		p.hang(true)
		held := s.hold(t, there, "alive-3-0", 3)
		failures := func() float64 { return testutil.ToFloat64(r.opts.metrics.failures.WithLabelValues("chat", "0")) }
		redistest.Eventually(t, "its call has ended", func() bool { return failures() >= 1 })
		waves(t, s, here, good, 5)
		redistest.Eventually(t, "it is asked again", func() bool { return failures() >= 2 })
		require.NotZero(t, r.log.Count("domain=chat stream="+there.Name))
		require.Len(t, stalled.got(), 3, "nothing of it was claimed meanwhile")
		p.hang(false)
		redistest.Eventually(t, "served again", func() bool { return len(stalled.got()) >= 6 })
		require.Subset(t, stalled.got(), held)
		if stood() < time.Second { // else calls of the good domain may end too
			require.Zero(t, testutil.ToFloat64(r.opts.metrics.failures.WithLabelValues("domain", "0")))
		}
	})
}

type named struct {
	name string
	Target
}

func (n named) Domain() string { return n.name }

// A call that never ends delays its own domain, and no other.
func TestDomainsDoNotWaitForEachOther(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := redis.DefaultClientConfig()
		c.Addrs = []string{s.Addr}
		hung, err := redis.NewClient(c, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = hung.Close() })
		release, entered := make(chan struct{}), make(chan struct{}, 100)
		hung.AddHook(hook{pipeline: func(_ context.Context, cmds []goredis.Cmder, next func([]goredis.Cmder) error) error {
			entered <- struct{}{}
			<-release
			return next(cmds)
		}})
		good := &fakeReader{free: 1000}
		here, there := s.acked(t, "scan", good), s.acked(t, "chat", &fakeReader{free: 1})
		r := newRig(quick(), "me-1", present("alive-3"),
			&fakeTarget{client: hung, streams: []Stream{there}}, &fakeTarget{client: s.client, streams: []Stream{here}})
		r.run(t)
		t.Cleanup(func() { close(release) }) // before the reclaimer is stopped
		<-entered
		waves(t, s, here, good, 3)
	})
}

// The calls of a shard that does not answer end with an error. It then comes last: the other shards
// of its domain are checked and served before it.
func TestASlowShardComesLast(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		readers := []*fakeReader{{free: 1000}, {free: 1000}, {free: 1000}}
		var shards []Stream
		for i, r := range readers {
			shards = append(shards, s.acked(t, fmt.Sprint("scan:", i), r))
		}
		slow := shards[0]
		claim := s.claimHash(t)
		var silent atomic.Bool
		var mu sync.Mutex
		var order []string // of the calls since the last round
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		client := newHooked(t, s, hook{
			pipeline: func(ctx context.Context, cmds []goredis.Cmder, next func([]goredis.Cmder) error) error {
				if !slices.ContainsFunc(cmds, func(c goredis.Cmder) bool { return touches(c, slow.Name) }) {
					return next(cmds)
				}
				note("slow")
				if !silent.Load() {
					return next(cmds)
				}
				// Like a cluster whose node hangs: the others answer, and the whole takes as long
				// as the node.
				others := slices.DeleteFunc(slices.Clone(cmds), func(c goredis.Cmder) bool { return touches(c, slow.Name) })
				if len(others) > 0 {
					if err := next(others); err != nil {
						return err
					}
				}
				if _, limited := ctx.Deadline(); !limited {
					<-ctx.Done() // a call without an end would hang the test
				}
				for _, c := range cmds { // as at the end of ctx
					if touches(c, slow.Name) {
						c.SetErr(context.DeadlineExceeded)
					}
				}
				return context.DeadlineExceeded
			},
			command: func(ctx context.Context, cmd goredis.Cmder, next func() error) error {
				for _, st := range shards[1:] {
					if touches(cmd, claim) && touches(cmd, st.Name) {
						note(st.Name)
					}
				}
				return next()
			},
		})
		rig := newRig(quick(), "me-1", present("alive-3"))
		rig.call, rig.slow = 30*time.Second, 30*time.Second // of the good shards too: the machine may stand still
		d := newDomain(rig.Reclaimer, &fakeTarget{client: client, streams: shards})
		silent.Store(true)
		begun := func() []string {
			mu.Lock()
			defer mu.Unlock()
			out := order
			order = nil
			return out
		}
		for round := range 3 {
			for _, st := range shards {
				s.hold(t, st, "alive-3-0", 2)
			}
			<-time.After(quick().MinIdle)
			d.round(t.Context(), true)
			require.Len(t, readers[1].got(), 2*(round+1), "served although the first shard is silent")
			require.Len(t, readers[2].got(), 2*(round+1))
			if want := []string{shards[1].Name, shards[2].Name, "slow"}; round > 0 {
				require.Equal(t, want, begun(), "it comes last")
			} else {
				require.Equal(t, "slow", begun()[0], "nothing was known of it")
			}
			require.InDelta(t, round+1, testutil.ToFloat64(rig.opts.metrics.failures.WithLabelValues("domain", "0")), 0)
		}
		require.Empty(t, readers[0].got())
		silent.Store(false)
		d.round(t.Context(), true)
		require.Len(t, readers[0].got(), 6)
		begun()
		d.round(t.Context(), true)
		require.Equal(t, []string{"slow"}, begun(), "it is one of all again: one look")
	})
}

// holding is a fakeReader that has entries in flight.
type holding struct {
	*fakeReader
	ids []string
}

func (h holding) Holds(id string) bool { return slices.Contains(h.ids, id) }

// This instance does not claim an entry that is stuck here, not even together with its neighbours.
func TestWhatIsStuckHereIsLeftToOthers(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour // what is claimed is not idle again
		st := s.stream(t, "scan", "me-1-0", nil)
		before := s.hold(t, st, "alive-3-0", 2)
		stuck := s.hold(t, st, st.Consumer, 12) // more than one step
		behind := s.hold(t, st, "alive-3-0", 2)
		stuck = append(stuck, s.hold(t, st, st.Consumer, 1)...)
		reader := &fakeReader{free: 100}
		st.Reader = holding{reader, stuck}
		d := newDomain(newRig(c, "me-1", present("alive-3")).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		s.release(t, st, "alive-3-0", c.MinIdle, slices.Concat(before, behind))
		s.release(t, st, st.Consumer, c.MinIdle, stuck)
		d.round(t.Context(), true)
		require.Equal(t, slices.Concat(before, behind), reader.got())
		pending, err := s.client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{
			Stream: st.Name, Group: st.Group, Idle: c.MinIdle, Start: "-", End: "+", Count: 100,
		}).Result()
		require.NoError(t, err)
		var idle []string
		for _, p := range pending {
			idle = append(idle, p.ID)
			require.EqualValues(t, 1, p.RetryCount, "nobody was given it meanwhile")
		}
		require.Equal(t, stuck, idle, "others may claim them")
	})
}

// The entries that a slow shard has claimed are counted. The shard only comes last.
func TestWhatASlowShardHasDoneIsCounted(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		reader := &fakeReader{free: 100}
		st := s.acked(t, "scan", reader)
		claim := s.claimHash(t)
		client := newHooked(t, s, hook{command: func(_ context.Context, cmd goredis.Cmder, next func() error) error {
			if touches(cmd, claim) {
				<-time.After(slowStream)
			}
			return next()
		}})
		rig := newRig(quick(), "me-1", present("alive-3"))
		d := newDomain(rig.Reclaimer, &fakeTarget{client: client, streams: []Stream{st}})
		s.hold(t, st, "alive-3-0", 3)
		<-time.After(quick().MinIdle)
		d.round(t.Context(), true)
		require.Len(t, reader.got(), 3)
		require.Contains(t, d.slow, st.Name)
		require.InDelta(t, 3, testutil.ToFloat64(rig.opts.metrics.messages.WithLabelValues("domain", "0")), 0)
	})
}

func newHooked(t *testing.T, s server, h hook) goredis.UniversalClient {
	t.Helper()
	c := redis.DefaultClientConfig()
	c.Addrs = []string{s.Addr}
	client, err := redis.NewClient(c, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(h)
	return client
}

func touches(c goredis.Cmder, arg string) bool { return slices.Contains(c.Args(), any(arg)) }

// hook is a goredis.Hook of functions; nil ones do nothing of their own.
type hook struct {
	command  func(ctx context.Context, cmd goredis.Cmder, next func() error) error
	pipeline func(ctx context.Context, cmds []goredis.Cmder, next func([]goredis.Cmder) error) error
}

func (hook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (h hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	if h.command == nil {
		return next
	}
	return func(ctx context.Context, cmd goredis.Cmder) error {
		return h.command(ctx, cmd, func() error { return next(ctx, cmd) })
	}
}

func (h hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	if h.pipeline == nil {
		return next
	}
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		return h.pipeline(ctx, cmds, func(cmds []goredis.Cmder) error { return next(ctx, cmds) })
	}
}

// Two instances reclaim from the same streams as fast as they can. They never work at one stream at
// the same time, and both get entries.
func TestTwoInstancesAreNeverAtOneStreamAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.Count, c.ClaimBatchSize = time.Millisecond, 4, 2 // idle again at once
		at := map[string]*turnstile{}
		targets := map[string]*fakeTarget{"a-1": {client: s.client}, "b-2": {client: s.client}}
		for i := range 4 {
			name := fmt.Sprint("scan:", i)
			at[name] = &turnstile{}
			st := s.stream(t, name, "", nil)
			s.hold(t, st, "alive-3-0", 30)
			for who, target := range targets {
				st.Consumer, st.Reader = who+"-0", gate{at[name], who}
				target.streams = append(target.streams, st)
			}
		}
		// They start from both ends, so that they meet in the middle.
		slices.Reverse(targets["b-2"].streams)
		<-time.After(5 * c.MinIdle)
		var both sync.WaitGroup
		for who, target := range targets {
			d := newDomain(newRig(c, who, present("alive-3", "a-1", "b-2")).Reclaimer, target)
			both.Go(func() {
				for range 25 {
					d.round(t.Context(), true)
				}
			})
		}
		both.Wait()
		turns := map[string]int64{}
		for name, stile := range at {
			require.Zero(t, stile.clashes.Load(), name)
			turns["a-1"] += stile.first.Load()
			turns["b-2"] += stile.second.Load()
		}
		require.NotZero(t, turns["a-1"])
		require.NotZero(t, turns["b-2"])
	})
}

// turnstile counts who comes while another is inside.
type turnstile struct {
	inside                 sync.Mutex
	clashes, first, second atomic.Int64
}

// gate is a Reader behind a turnstile; it has room for everything.
type gate struct {
	*turnstile
	who string
}

func (gate) Free() int { return 100 }

func (g gate) Adopt(context.Context, []goredis.XMessage, map[string]int64, func()) error {
	if !g.inside.TryLock() {
		g.clashes.Add(1)
		return nil
	}
	defer g.inside.Unlock()
	if g.who == "a-1" {
		g.first.Add(1)
	} else {
		g.second.Add(1)
	}
	<-time.After(time.Millisecond)
	return nil
}
