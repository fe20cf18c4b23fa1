package reclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// After a kill -9, the entries of the instance are claimed long before min_idle. The real reader
// here handles each once, and the acks are counted. The dead reader is removed.
func TestEntriesOfADeadInstanceAreHandledAtOnce(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour
		st := s.stream(t, "1", "me-1-0", nil)
		held := s.hold(t, st, "dead-2-0", 25)
		alive := s.hold(t, st, "alive-3-0", 5)
		require.NoError(t, s.client.HSet(t.Context(), st.Meta, InstanceField("dead-2"), "x", InstanceField("alive-3"), "y").Err())
		var mu sync.Mutex
		runs := map[string]int{}
		deliveries := map[string]int64{}
		realReader(t, s, &st, 3, time.Hour, func(m *message.Message) {
			d := pipeline.DeliveryFrom(m.Context())
			mu.Lock()
			defer mu.Unlock()
			runs[entryIDOf(d.Origin)]++
			deliveries[entryIDOf(d.Origin)] = d.Delivered
		})
		p := present("alive-3")
		r := newRig(c, "me-1", p, &fakeTarget{client: s.client, streams: []Stream{st}})
		r.run(t)
		redistest.Eventually(t, "all handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(runs) == len(held) })
		redistest.Eventually(t, "reader removed", func() bool { return !slices.Contains(s.consumers(t, st), "dead-2-0") })
		mu.Lock()
		for _, id := range held {
			require.Equal(t, 1, runs[id], id)
			require.Equal(t, int64(2), deliveries[id], "delivered for the second time")
		}
		for _, id := range alive {
			require.Zero(t, runs[id], "nothing is taken from the living")
		}
		mu.Unlock()
		m := r.opts.metrics
		redistest.Eventually(t, "counted", func() bool {
			return testutil.ToFloat64(m.messages.WithLabelValues("domain", "0")) == 25 &&
				testutil.ToFloat64(m.removed.WithLabelValues("domain", "0")) == 1
		})
		require.InDelta(t, 25, testutil.ToFloat64(m.claims.WithLabelValues("domain", "0", "dead")), 0)
		require.Contains(t, s.consumers(t, st), "alive-3-0")
		require.False(t, s.client.HExists(t.Context(), st.Meta, InstanceField("dead-2")).Val(), "its status goes too")
		require.True(t, s.client.HExists(t.Context(), st.Meta, InstanceField("alive-3")).Val())
		require.Zero(t, testutil.ToFloat64(m.failures.WithLabelValues("domain", "0")))
		redistest.Eventually(t, "logged", func() bool { return r.log.Count(`msg="entries reclaimed"`) > 0 })
	})
}

// An instance is not dead before presence_timeout, and not when its presence can't be read.
func TestAShortAbsenceIsNoDeath(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle, c.PresenceTimeout = time.Hour, 150*time.Millisecond
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		s.hold(t, st, "other-2-0", 5)
		s.hold(t, st, "nameless", 5) // no <instance>-<index>: nothing is known about its owner
		p := present("other-2")
		d := newDomain(newRig(c, "me-1", p).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		flicker := time.Now()
		for time.Since(flicker) < 2*c.PresenceTimeout {
			p.set("other-2", false)
			d.round(t.Context(), false)
			p.set("other-2", true)
			d.round(t.Context(), false)
		}
		p.set("other-2", false)
		d.round(t.Context(), false)
		p.err = errInjected
		for blind := time.Now(); time.Since(blind) < 2*c.PresenceTimeout; {
			d.round(t.Context(), false)
		}
		require.Empty(t, reader.got())
		p.err = nil
		p.set("other-2", false)
		for short := time.Now(); time.Since(short) < c.PresenceTimeout/3; {
			d.round(t.Context(), false)
			if time.Since(short) < c.PresenceTimeout { // the process may have stood still
				require.Empty(t, reader.got(), "only just gone")
			}
		}
		<-time.After(c.PresenceTimeout)
		d.round(t.Context(), false)
		require.Len(t, reader.got(), 5)
		require.Equal(t, []string{"me-1-0", "nameless"}, s.consumers(t, st))
	})
}

// Promise 8: a handler that takes longer than min_idle keeps its message, because its reader renews
// it again and again. An instance that reclaims all the time gets nothing.
func TestASlowHandlerKeepsItsMessage(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		t.Parallel()                    // it is all waiting
		const minIdle = 7 * time.Second // a machine may stand still for half of it
		st := s.stream(t, "1", "slow-1-0", nil)
		var runs atomic.Int64
		release := make(chan struct{})
		realReader(t, s, &st, 1, minIdle, func(*message.Message) {
			runs.Add(1)
			<-release
		})
		end := sync.OnceFunc(func() { close(release) })
		t.Cleanup(end) // a failed test leaves no handler behind
		require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: st.Name, Values: []any{"message", "x"}}).Err())
		thief := &fakeReader{free: 100}
		other := st
		other.Consumer, other.Reader = "thief-2-0", thief
		c := quick()
		c.MinIdle = time.Millisecond // wrong; the target raises it
		r := newRig(c, "thief-2", present("slow-1"), &fakeTarget{client: s.client, minIdle: minIdle, streams: []Stream{other}})
		r.run(t)
		redistest.Eventually(t, "handled", func() bool { return runs.Load() > 0 })
		<-time.After(minIdle + minIdle/5)
		redistest.Eventually(t, "the last of several renewals", func() bool {
			p := s.client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: st.Name, Group: st.Group, Start: "-", End: "+", Count: 1}).Val()
			return len(p) == 1 && p[0].Idle < minIdle/2
		})
		end()
		require.Equal(t, int64(1), runs.Load())
		require.Empty(t, thief.got())
	})
}

// This instance does not claim an entry again that its own handler has had for longer than the
// longest hold. Another instance gets it.
func TestWhatIsStuckHereIsForOthers(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		const minIdle = time.Second
		st := s.stream(t, "1", "me-1-0", nil)
		out, release := make(chan *message.Message), make(chan struct{})
		r := poll.NewReader(s.client, poll.Options{
			Stream: st.Name, Group: st.Group, Consumer: st.Consumer,
			Config: poll.Config{
				Concurrency: 1, BatchSize: 1,
				PollInterval: 10 * time.Millisecond, InitialPollInterval: time.Millisecond, MinIdle: minIdle, LongestHold: minIdle / 4,
			},
		}, out, nil, nil)
		r.Start()
		var handlers sync.WaitGroup
		handlers.Go(func() { m := <-out; <-release; m.Ack() })
		t.Cleanup(func() {
			close(release)
			handlers.Wait()
			require.NoError(t, r.Drain(context.Background()))
		})
		require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: st.Name, Values: []any{"message", "x"}}).Err())
		idle := &goredis.XPendingExtArgs{Stream: st.Name, Group: st.Group, Idle: minIdle, Start: "-", End: "+", Count: 1}
		var pending []goredis.XPendingExt
		redistest.Eventually(t, "no sign of life", func() bool {
			pending = s.client.XPendingExt(t.Context(), idle).Val()
			return len(pending) == 1
		})
		st.Reader = r
		c := quick()
		d := newDomain(newRig(c, "me-1", present("other-2")).Reclaimer, &fakeTarget{client: s.client, minIdle: minIdle, streams: []Stream{st}})
		d.round(t.Context(), true)
		now := s.client.XPendingExt(t.Context(), idle).Val()
		require.Len(t, now, 1, "not claimed")
		require.Equal(t, pending[0].RetryCount, now[0].RetryCount)

		other := &fakeReader{free: 10}
		theirs := st
		theirs.Consumer, theirs.Reader = "other-2-0", other
		d = newDomain(newRig(c, "other-2", present("me-1")).Reclaimer, &fakeTarget{client: s.client, minIdle: minIdle, streams: []Stream{theirs}})
		d.round(t.Context(), true)
		require.Equal(t, []string{pending[0].ID}, other.got())
	})
}

// No more is claimed than there is room for, and the rest comes as soon as there is.
func TestNoMoreThanTheReaderHasRoomFor(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour // what is claimed is not idle again
		reader := &fakeReader{free: 4}
		st := s.stream(t, "1", "me-1-0", reader)
		s.hold(t, st, "dead-2-0", 10)
		s.release(t, st, "alive-3-0", c.MinIdle, s.hold(t, st, "alive-3-0", 10))
		d := newDomain(newRig(c, "me-1", present("alive-3")).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		require.False(t, d.round(t.Context(), false), "no instance is dead yet")
		<-time.After(c.PresenceTimeout)
		require.True(t, d.round(t.Context(), true), "something is left")
		require.Len(t, reader.got(), 4)
		require.Contains(t, s.consumers(t, st), "dead-2-0", "it still holds something")
		reader.mu.Lock()
		reader.free = 100
		reader.mu.Unlock()
		require.False(t, d.round(t.Context(), true))
		require.Len(t, reader.got(), 20)
		require.NotContains(t, s.consumers(t, st), "dead-2-0")
	})
}

// One reclaimer works per stream. The lease of a killed holder ends by itself.
func TestOneReclaimerAStreamAtATime(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		s.hold(t, st, "alive-3-0", 5)
		<-time.After(c.MinIdle)
		d := newDomain(newRig(c, "me-1", present("alive-3")).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		lease := func(who string, d2 time.Duration) int {
			reply, err := d.r.scripts.lease.Run(t.Context(), s.client, []string{st.Name, st.Meta}, who, d2.Milliseconds()).Int()
			require.NoError(t, err)
			return reply
		}
		require.Equal(t, 1, lease("other-2", 10*time.Second))
		d.round(t.Context(), true)
		require.Empty(t, reader.got())
		require.Equal(t, 0, lease("third-3", 10*time.Second))
		require.Equal(t, 1, lease("other-2", time.Millisecond), "the holder may prolong or shorten it")
		<-time.After(5 * time.Millisecond)
		d.round(t.Context(), true)
		require.Len(t, reader.got(), 5)
		require.False(t, s.client.HExists(t.Context(), st.Meta, "reclaim:by").Val(), "released at the end")
		require.Equal(t, 1, lease("third-3", time.Second))
		n, err := d.r.scripts.release.Run(t.Context(), s.client, []string{st.Meta}, "other-2").Int()
		require.NoError(t, err)
		require.Zero(t, n, "a lease of another instance stays")
		require.Equal(t, "third-3", s.client.HGet(t.Context(), st.Meta, "reclaim:by").Val())
		require.NoError(t, s.client.HSet(t.Context(), st.Meta, "reclaim:until", time.Now().Add(time.Hour).UnixMilli()).Err())
		require.Equal(t, 1, lease("me-1", time.Second), "the server's clock was set back")

		require.NoError(t, s.client.Del(t.Context(), st.Name, st.Meta).Err())
		require.Equal(t, -1, lease("me-1", time.Second))
		require.Zero(t, s.client.Exists(t.Context(), st.Meta).Val(), "a stream that is gone leaves no meta behind")
	})
}

// Deleted ids show a loss. They are logged as an error, counted and reported, and are not pending.
func TestDeletedEntriesAreReportedAsLost(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour // what is claimed is not idle again
		reader := &fakeReader{free: 100}
		st := s.stream(t, "1", "me-1-0", reader)
		dead := s.hold(t, st, "dead-2-0", 4)
		require.NoError(t, s.client.XDel(t.Context(), st.Name, dead[1], dead[2]).Err())
		idle := s.hold(t, st, "alive-3-0", 4)
		s.release(t, st, "alive-3-0", c.MinIdle, idle)
		require.NoError(t, s.client.XDel(t.Context(), st.Name, idle[0]).Err())
		lost := []string{dead[1], dead[2], idle[0]}
		r := newRig(c, "me-1", present("alive-3"), &fakeTarget{client: s.client, streams: []Stream{st}})
		r.run(t)
		redistest.Eventually(t, "reported", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.lost[st.Name]) == len(lost)
		})
		redistest.Eventually(t, "the others claimed", func() bool { return len(reader.got()) == 8-len(lost) })
		r.mu.Lock()
		require.ElementsMatch(t, lost, r.lost[st.Name])
		r.mu.Unlock()
		require.InDelta(t, float64(len(lost)), testutil.ToFloat64(r.opts.metrics.losses.WithLabelValues("domain", "0")), 0)
		require.NotZero(t, r.log.Count("level=ERROR"))
		redistest.Eventually(t, "dead reader removed", func() bool { return !slices.Contains(s.consumers(t, st), "dead-2-0") })
	})
}

// A failing shard is logged and counted and all others
// finish; NOGROUP is no error; domains don't wait for each other.
func TestAFailingStreamDelaysNoOther(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		c.MinIdle = time.Hour // what is claimed is not idle again
		good := []*fakeReader{{free: 100}, {free: 100}, {free: 100}}
		first := s.stream(t, "0", "me-1-0", good[0])
		last := s.stream(t, "3", "me-1-0", good[1])
		s.release(t, first, "alive-3-0", c.MinIdle, s.hold(t, first, "alive-3-0", 5))
		s.release(t, last, "alive-3-0", c.MinIdle, s.hold(t, last, "alive-3-0", 5))
		absent := Stream{Shard: "1", Name: s.prefix + ":1", Group: "g", Consumer: "me-1-0", Meta: "{" + s.prefix + ":1}:meta", Reader: &fakeReader{free: 1}}
		require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: s.prefix + ":1b", Values: []any{"message", "x"}}).Err())
		nogroup := absent
		nogroup.Name, nogroup.Meta = s.prefix+":1b", "{"+s.prefix+":1b}:meta"
		broken := absent
		broken.Shard, broken.Name, broken.Meta = "2", s.prefix+":2", "{"+s.prefix+":2}:meta"
		require.NoError(t, s.client.Set(t.Context(), broken.Name, "not a stream", 0).Err())
		shards := &fakeTarget{client: s.client, streams: []Stream{first, absent, nogroup, broken, last}}

		// Another domain, whose server does not answer.
		nowhere := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		t.Cleanup(func() { _ = nowhere.Close() })
		down := s.stream(t, "down", "me-1-0", good[2])
		r := newRig(c, "me-1", present("alive-3"), shards, &fakeTarget{client: nowhere, streams: []Stream{down}})
		r.run(t)
		redistest.Eventually(t, "the others finish", func() bool { return len(good[0].got()) == 5 && len(good[1].got()) == 5 })
		failures := r.opts.metrics.failures
		redistest.Eventually(t, "counted", func() bool { return testutil.ToFloat64(failures.WithLabelValues("domain", "2")) > 0 })
		redistest.Eventually(t, "the server that is down too", func() bool { return testutil.ToFloat64(failures.WithLabelValues("domain", "0")) > 0 })
		require.Zero(t, testutil.ToFloat64(failures.WithLabelValues("domain", "1")), "NOGROUP and an absent stream are no error")
		require.NotZero(t, r.log.Count(broken.Name))
		require.Zero(t, r.log.Count(nogroup.Name))
	})
}

// A reader that stops while entries are being claimed takes none: it has released them.
func TestAReaderThatStopsRefuses(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		c := quick()
		st := s.stream(t, "1", "me-1-0", nil)
		reader := realReader(t, s, &st, 1, c.MinIdle, func(*message.Message) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, reader.Drain(ctx)) // before there is anything that it could read itself
		ids := s.hold(t, Stream{Name: st.Name, Group: st.Group}, "dead-2-0", 1)
		stopping := &stoppingReader{Reader: reader}
		st.Reader = stopping
		d := newDomain(newRig(c, "me-1", present()).Reclaimer, &fakeTarget{client: s.client, streams: []Stream{st}})
		d.round(t.Context(), false)
		<-time.After(c.PresenceTimeout)
		d.round(t.Context(), false)
		require.Equal(t, 1, stopping.refused)
		require.InDelta(t, 1, testutil.ToFloat64(d.r.opts.metrics.refused.WithLabelValues("domain", "0")), 0)
		p, err := s.client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: st.Name, Group: st.Group, Idle: c.MinIdle, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(t, err)
		require.Len(t, p, 1, "claimable at once")
		require.Equal(t, ids[0], p[0].ID)
	})
}

// stoppingReader says that it has room, and then stops.
type stoppingReader struct {
	Reader
	refused int
}

func (*stoppingReader) Free() int { return 10 }

func (r *stoppingReader) Adopt(ctx context.Context, entries []goredis.XMessage, delivered map[string]int64, acked func()) error {
	r.refused += len(entries)
	return r.Reader.Adopt(ctx, entries, delivered, acked)
}

// A thousand idle streams cost two commands each and round, in a handful of pipelines.
func TestAThousandQuietStreamsAreCheap(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		target := &fakeTarget{client: s.client}
		for i := range 1000 {
			target.streams = append(target.streams, s.stream(t, fmt.Sprint(i), "me-1-0", &fakeReader{free: 1}))
		}
		h := &countingHook{}
		s.client.AddHook(h)
		d := newDomain(newRig(quick(), "me-1", present()).Reclaimer, target)
		begin := time.Now()
		d.round(t.Context(), true)
		t.Logf("a round over 1000 streams: %s", time.Since(begin))
		require.Equal(t, int64(10), h.pipelines.Load())
		require.InDelta(t, 2000, h.commands.Load(), 20, "and the handshakes of new connections")
	})
}

type countingHook struct{ pipelines, commands atomic.Int64 }

func (h *countingHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (h *countingHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { h.commands.Add(1); return next(ctx, cmd) }
}
func (h *countingHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		h.pipelines.Add(1)
		h.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

func TestMetricLabels(t *testing.T) {
	m := newMetrics()
	m.messages.WithLabelValues("campaign-promotion-stream", "POINT").Inc()
	m.observe("campaign-promotion-stream", "POINT", time.Millisecond)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m.Collectors()...)
	families, err := reg.Gather()
	require.NoError(t, err)
	labels := map[string]string{}
	for _, f := range families {
		var names []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			names = append(names, l.GetName())
		}
		labels[f.GetName()] = strings.Join(names, ",")
	}
	require.Equal(t, "domain,shard", labels["millrace_reclaim_messages_total"])
	require.Equal(t, "domain,shard", labels["millrace_reclaim_latency_seconds"])
}

func TestInstanceOf(t *testing.T) {
	for consumer, want := range map[string]string{
		"host-123-0": "host-123", "a-0": "a", "pod-7f8b9c-12345-31": "pod-7f8b9c-12345",
		"nameless": "", "-0": "", "a-": "", "a-x": "", "": "",
	} {
		got, ok := instanceOf(consumer)
		require.Equal(t, want, got, consumer)
		require.Equal(t, want != "", ok, consumer)
	}
}

func TestValidate(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	err := Config{}.Validate()
	for _, key := range []string{"min_idle", "interval", "count", "claim_batch_size", "dead_check_interval", "presence_timeout"} {
		require.ErrorContains(t, err, key+": ")
	}
	c := DefaultConfig()
	c.PresenceTimeout = redis.PresenceRenewal
	require.ErrorContains(t, c.Validate(), "presence_timeout: ")
}

func TestStopIsLegalBeforeStartAndTwice(t *testing.T) {
	r := NewReclaimer(Options{Config: quick(), Alive: present().read})
	require.NoError(t, r.Stop(t.Context()))
	require.NoError(t, r.Stop(t.Context()))
	require.ErrorContains(t, r.Start(t.Context()), "was started or stopped before")
}

func TestPlugin(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		shared := redis.New()
		return []pipeline.Plugin{shared, New(shared)}
	})
}

// entryIDOf returns the entry id in the position of a message.
func entryIDOf(o pipeline.Origin) string { return strings.TrimPrefix(o.Position, o.Source+"@") }
