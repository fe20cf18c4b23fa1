package once_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/streams"
)

// spreading is a Redis and a ledger, for instances of invoices that come by streams.
type spreading struct {
	t      *testing.T
	dsn    string
	addr   string
	db     int
	client *goredis.Client
	mini   bool
	open   atomic.Bool // the far side takes calls
}

// eachSpreading runs a test on each Redis, with a ledger in SQLite.
func eachSpreading(t *testing.T, test func(t *testing.T, s *spreading)) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		t.Parallel()
		test(t, newSpreading(t, server, sqldbtest.File(t)))
	})
}

func newSpreading(t *testing.T, server redistest.Server, dsn string) *spreading {
	s := &spreading{t: t, dsn: dsn, addr: server.Addr, db: server.Database(t), mini: server.Mini != nil}
	s.client = server.Client(t, func(o *goredis.Options) { o.DB = s.db })
	require.NoError(t, s.client.FlushDB(t.Context()).Err())
	s.open.Store(true)
	return s
}

// instance returns the plugins of an instance that looks into the ledger only when it is told to.
func (s *spreading) instance(change func(*once.Kind[invoice], *once.KindConfig)) (*oncetest.World, *invoices, []pipeline.Plugin) {
	w := oncetest.On(s.t, s.dsn)
	shared := redis.New()
	config := shared.Settings().(*redis.Config)
	config.Addrs, config.DB = []string{s.addr}, s.db
	config.ReadTimeout, config.WriteTimeout = redistest.Timeout, redistest.Timeout
	w.Once.UseStreams(shared)
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
		c.Via, c.Grace, c.PollInterval = once.ViaStreams, hour, hour
		k.Gate = gate(s.open.Load)
		if change != nil {
			change(k, c)
		}
	})
	p.effects.SpreadWithin(hour) // a machine may stand still
	p.effects.SpreadCallsWithin(hour)
	claims := reclaim.New(shared)
	claims.Settings().(*reclaim.Config).Interval = 20 * millisecond
	return w, p, []pipeline.Plugin{shared, claims, w.Once, p}
}

func (s *spreading) start(change func(*once.Kind[invoice], *once.KindConfig)) (*oncetest.World, *invoices) {
	w, p, plugins := s.instance(change)
	pipelinetest.Start(s.t, plugins...)
	return w, p
}

func (s *spreading) pending(group string) int64 {
	n, err := s.client.XPending(s.t.Context(), "once:invoice:"+group, "once-group:invoice:"+group).Result()
	require.NoError(s.t, err)
	return n.Count
}

func invoicesOf(customer string, n int) (all []invoice) {
	for i := range n {
		all = append(all, invoice{Customer: customer, Number: strconv.Itoa(i), Cents: 100})
	}
	return all
}

func (s *spreading) settled(p *invoices, all ...invoice) {
	for _, i := range all {
		require.Equal(s.t, rules.Success, oncetest.Settled(s.t, p.effects, i.key()).State)
		require.Equal(s.t, 1, p.far.Executed(i.idempotency()))
	}
}

// An instance learns of effects by their entries, also those of another one, and of rows that it can't take at once.
func TestEffectsComeByStreams(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		_, p := s.start(func(_ *once.Kind[invoice], c *once.KindConfig) { c.Concurrency = 4 })
		var all []invoice
		for _, customer := range []string{"acme", "a:b {c}", "zeta"} {
			some := invoicesOf(customer, 60)
			all = append(all, some...)
			_, err := p.effects.Enqueue(t.Context(), some[:50]...)
			require.NoError(t, err)
			for _, i := range some[50:] {
				_, err := p.effects.Enqueue(t.Context(), i)
				require.NoError(t, err)
			}
		}
		s.settled(p, all...)
		for _, group := range []string{"acme", "a%3Ab%20%7Bc%7D", "zeta"} {
			redistest.Eventually(t, "acknowledged", func() bool { return s.pending(group) == 0 })
			n, err := s.client.XLen(t.Context(), "once:invoice:"+group).Result()
			require.NoError(t, err)
			require.LessOrEqual(t, n, int64(12), "an entry for a row, and not for each effect")
		}
	})
}

// otherStreams is a plugin that has streams of its own.
type otherStreams struct{}

func (otherStreams) Name() string { return "other" }
func (otherStreams) Register(r *pipeline.Registry) error {
	streams.SharedMetrics(r)
	return nil
}

// The streams of a kind have the metrics of all streams, also beside another plugin that has streams.
func TestStreamsOfAKindAreMeasured(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		_, p, plugins := s.instance(nil)
		registry := pipelinetest.Start(t, append(plugins, otherStreams{})...)
		require.NoError(t, registry.CheckCollectors())
		scraped := prometheus.NewPedanticRegistry()
		scraped.MustRegister(registry.Collectors()...)
		value := func(name string, labels ...string) float64 {
			families, err := scraped.Gather()
			require.NoError(t, err)
			for _, f := range families {
				for _, m := range f.GetMetric() {
					has := []string{}
					for _, l := range m.GetLabel() {
						has = append(has, l.GetValue())
					}
					if f.GetName() == name && slices.Equal(has, labels) {
						return m.GetGauge().GetValue() + m.GetCounter().GetValue()
					}
				}
			}
			t.Errorf("no series of %s has the labels %q", name, labels)
			return -1
		}
		require.Zero(t, value("millrace_streams_enqueued_total", "added", "invoice"))

		s.open.Store(false) // nothing is read
		all := slices.Concat(invoicesOf("acme", 7), invoicesOf("zeta", 5))
		for _, i := range all { // each has a row of its own
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
		}
		require.InDelta(t, 12, value("millrace_streams_enqueued_total", "added", "invoice"), 0)
		redistest.Eventually(t, "readers and their backlog", func() bool {
			return value("millrace_streams_running", "invoice") == 2 && value("millrace_streams_entries", "invoice") == 12
		})

		s.open.Store(true)
		s.settled(p, all...)
		redistest.Eventually(t, "no backlog", func() bool { return value("millrace_streams_entries", "invoice") == 0 })
	})
}

// An entry that comes again, or for a row that is gone, is acknowledged and does nothing.
func TestAnEntryThatComesAgainDoesNothing(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		s.open.Store(false)
		_, p := s.start(nil)
		all := invoicesOf("acme", 70)
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		entries, err := s.client.XRange(t.Context(), "once:invoice:acme", "-", "+").Result()
		require.NoError(t, err)
		require.NotEmpty(t, entries)
		again := func() { // the stream is trimmed when they are acknowledged
			for _, e := range append(entries, entries...) {
				require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: "once:invoice:acme", Values: e.Values}).Err())
			}
		}
		again()
		s.open.Store(true)
		s.settled(p, all...)
		again()
		require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: "once:invoice:acme", Values: []any{"message", "no number"}}).Err())
		last := invoicesOf("acme", 71)[70]
		_, err = p.effects.Enqueue(t.Context(), last)
		require.NoError(t, err)
		s.settled(p, append(all, last)...)
		redistest.Eventually(t, "acknowledged", func() bool { return s.pending("acme") == 0 })
	})
}

// Without its entry an effect waits for the grace and no longer: when Redis was wiped, refuses the stream or is full.
func TestALostEntryCostsTheGrace(t *testing.T) {
	t.Parallel()
	wipe := func(s *spreading) { require.NoError(s.t, s.client.FlushDB(s.t.Context()).Err()) }
	for _, c := range []struct {
		name, entries string
		lose          func(s *spreading)
	}{
		{"wiped", once.EntriesRows, wipe},
		{"wiped", once.EntriesRecords, wipe},
		{"refused", once.EntriesRows, nil},
		{"full", once.EntriesRows, nil}, // there is room for one entry
		{"full", once.EntriesRecords, nil},
	} {
		name, lose := c.name, c.lose
		t.Run(name+" "+c.entries, func(t *testing.T) {
			t.Parallel()
			eachSpreading(t, func(t *testing.T, s *spreading) {
				w, p, plugins := s.instance(func(_ *once.Kind[invoice], config *once.KindConfig) {
					if config.Streams.Entries = c.entries; name == "full" {
						config.Streams.MaxLen = 1
					}
				})
				s.open.Store(lose == nil)
				if name == "refused" {
					require.NoError(t, s.client.Set(t.Context(), "once:invoice:acme", "not a stream", 0).Err())
				}
				pipelinetest.Start(t, plugins...)
				all := invoicesOf("acme", 60)
				got, err := p.effects.Enqueue(t.Context(), all...)
				require.NoError(t, err)
				require.Len(t, got, len(all))
				if name == "full" {
					full := map[string]float64{once.EntriesRows: 1, once.EntriesRecords: 59}
					for _, series := range redistest.Gather(t, "millrace_once_entries_total", w.Once.Collectors()...) {
						require.InDelta(t, map[string]float64{"added": 1, "full": full[c.entries]}[series.Labels["outcome"]], series.Value, 0, series.Labels)
					}
				}
				if lose != nil {
					lose(s)
					s.open.Store(true)
				}
				w.Turn(hour / 2)
				if name == "full" {
					s.settled(p, all[:1]...) // with those of its row
				}
				executed := 0
				for _, i := range all {
					executed += p.far.Executed(i.idempotency())
				}
				require.LessOrEqual(t, executed, map[string]int{"full": 50}[name], "in its grace nobody knows of it")
				w.Turn(hour / 2)
				s.settled(p, all...)
			})
		})
	}
}

// While Redis is away effects are accepted. Only those whose entries failed wait for their grace, and those that
// follow have none. They come by streams again when it is back.
func TestEffectsAreAcceptedWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		t.Parallel()
		s := newSpreading(t, server, sqldbtest.File(t))
		proxy := redistest.NewProxy(t, server.Addr)
		s.addr = proxy.Addr()
		w, p := s.start(nil)
		before, during := invoicesOf("acme", 1), invoicesOf("zeta", 20)
		_, err := p.effects.Enqueue(t.Context(), before...)
		require.NoError(t, err)
		s.settled(p, before...)
		p.effects.SpreadWithin(once.SpreadTimeout)
		proxy.SetDown(true)
		_, err = p.effects.Enqueue(t.Context(), during[0])
		require.NoError(t, err)
		require.True(t, p.effects.Away(), "each caller would wait for Redis")
		p.effects.SetAway(time.Now().Add(hour)) // a machine may stand still
		_, err = p.effects.Enqueue(t.Context(), during[1:]...)
		require.NoError(t, err)
		s.settled(p, during[1:]...)
		e, err := p.effects.State(t.Context(), during[0].key())
		require.NoError(t, err)
		require.Equal(t, rules.Pending, e.State)
		w.Turn(hour)
		s.settled(p, during...)
		proxy.SetDown(false)
		p.effects.SpreadWithin(hour)
		p.effects.SetAway(time.Now())
		after := invoicesOf("omega", 5)
		_, err = p.effects.Enqueue(t.Context(), after...)
		require.NoError(t, err)
		s.settled(p, after...)
	})
}

// An instance that stops leaves the entries that it has not taken to others, without a wait for their grace.
func TestAStoppedInstanceLeavesItsEntriesToOthers(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		var started <-chan struct{}
		var finish func()
		_, p, plugins := s.instance(func(k *once.Kind[invoice], c *once.KindConfig) {
			c.Concurrency = 1
			started, finish = held(t, k)
		})
		stop := pipelinetest.StartUntil(t, middleware.Options{}, plugins...)
		all := invoicesOf("acme", 5)
		for _, i := range all {
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
		}
		<-started
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		redistest.Eventually(t, "it claims nothing more", func() bool { return !p.effects.Claims() })
		finish()
		require.NoError(t, <-ended)
		require.Empty(t, started)

		_, next := s.start(nil)
		next.far = p.far
		for _, i := range all {
			require.Equal(t, rules.Success, oncetest.Settled(t, next.effects, i.key()).State)
		}
	})
}

// What a transaction of the caller has accepted has no entry and no grace.
func TestATransactionOfTheCallerHasNoGrace(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		t.Parallel()
		s := newSpreading(t, server, sqldbtest.Schema(t))
		_, p := s.start(nil)
		conn, err := pgx.Connect(t.Context(), s.dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		committed, err := p.effects.EnqueueTx(t.Context(), tx, one)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		committed()
		s.settled(p, one)
	})
}

func TestAKindViaStreamsNeedsItsRedis(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Via = once.ViaStreams })
	require.Equal(t, []string{"once", "redis", "reclaim"}, p.Needs())
	_, err := pipeline.NewRegistry(pipeline.Env{}, w.Once, p)
	require.ErrorContains(t, err, `kind "invoice" has via: streams, and the plugin once has no Redis`)
}

// A binary may have other topics than Kafka's, and a test has some of its own.
func TestAKindNeedsTheTopicsThatItWasGiven(t *testing.T) {
	t.Parallel()
	c := once.KindConfig{Topic: "invoices"}
	topics := kafka.New()
	require.Equal(t, []string{"once", "kafka", "deadletter"}, c.Needs(once.NewPlugin(topics, deadletter.New(topics))))
	require.Equal(t, []string{"once", "rabbit"}, c.Needs(once.NewPlugin(rabbit{}, &pipelinetest.Topics{})))
}

type rabbit struct{ pipeline.Topics }

func (rabbit) Name() string                      { return "rabbit" }
func (rabbit) Register(*pipeline.Registry) error { return nil }

// An effect that must be repeated takes its turn with the rows of entries, although there is always one.
func TestRepetitionsTakeTurnsWithEntries(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		all := invoicesOf("acme", 500)
		var called, again atomic.Int64
		s.open.Store(false)
		_, p := s.start(func(k *once.Kind[invoice], c *once.KindConfig) {
			c.Concurrency = 2
			c.Retry = pipeline.Backoff{First: millisecond, Max: millisecond}
			call := k.Call
			k.Call = func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
				n := called.Add(1)
				switch {
				case n == 1:
					return once.Answer{Class: once.Retry}
				case a.Number > 1:
					again.CompareAndSwap(0, n)
				}
				return call(ctx, a)
			}
		})
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		s.open.Store(true)
		s.settled(p, all...)
		require.Less(t, again.Load(), int64(len(all)), "the repetition did not wait for the end of the entries")
	})
}

// So many groups have a stream at once. Others get one when a stream has been drained and deleted.
func TestGroupsWithAStreamAreBounded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		t.Parallel()
		s := newSpreading(t, server, sqldbtest.File(t))
		const most = 20
		set := once.ActiveSetOf(s.client, most)
		for i := range most {
			ok, err := set.Admit(t.Context(), strconv.Itoa(i))
			require.NoError(t, err)
			require.True(t, ok)
		}
		ok, err := set.Admit(t.Context(), "one more")
		require.NoError(t, err)
		require.False(t, ok)
		ok, err = set.Admit(t.Context(), "7")
		require.NoError(t, err)
		require.True(t, ok, "it has one")
		require.NoError(t, set.Deactivate(t.Context(), "7"))
		ok, err = set.Admit(t.Context(), "one more")
		require.NoError(t, err)
		require.True(t, ok)
		active, err := set.Active(t.Context())
		require.NoError(t, err)
		require.Len(t, active, most)
	})
}
