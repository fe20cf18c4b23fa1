package once_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	lib "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// eachRecording runs a test on each Redis, with a ledger in SQLite and one in PostgreSQL.
func eachRecording(t *testing.T, test func(t *testing.T, s *spreading)) {
	for name, dsn := range map[string]func(testing.TB) string{"sqlite": sqldbtest.File, "postgres": sqldbtest.Schema} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, server redistest.Server) {
				t.Parallel()
				test(t, newSpreading(t, server, dsn(t)))
			})
		})
	}
}

// owned are the names that a kind continues, as an older system has them.
func owned(k *once.Kind[invoice], _ *once.KindConfig) {
	k.Names = once.Names{Stream: "POINT-STREAM:", StreamGroup: "POINT-GROUP:", ActiveSet: "POINT:ACTIVE"}
}

func withRecords(_ *once.Kind[invoice], c *once.KindConfig) {
	c.Topic, c.Group, c.Streams.Entries = "invoices", "millrace-invoice", once.EntriesRecords
}

// A kind with names of its owner has no key in Redis that is called otherwise, and its backlog is found.
func TestStreamsHaveTheNamesOfTheirOwner(t *testing.T) {
	t.Parallel()
	eachSpreading(t, func(t *testing.T, s *spreading) {
		s.open.Store(false)
		_, p, plugins := s.instance(owned)
		registry := pipelinetest.Start(t, plugins...)
		all := slices.Concat(invoicesOf("acme", 3), invoicesOf("a:b {c}", 3))
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		i := slices.IndexFunc(registry.Routes(), func(r pipeline.Route) bool { return r.Name == "invoice.stream" })
		backlog, err := registry.Routes()[i].From.(operate.Measured).Backlog(t.Context())
		require.NoError(t, err)
		if !s.mini { // miniredis does not say how far a group is behind
			require.EqualValues(t, 2, *backlog.Waiting)
		}

		keys, err := s.client.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		require.Subset(t, keys, []string{"POINT-STREAM:acme", "POINT-STREAM:a%3Ab%20%7Bc%7D", "POINT:ACTIVE"})
		for _, key := range keys {
			require.NotContains(t, key, "once")
		}
		members, err := s.client.SMembers(t.Context(), "POINT:ACTIVE").Result()
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"acme", "a%3Ab%20%7Bc%7D"}, members)
		groups, err := s.client.XInfoGroups(t.Context(), "POINT-STREAM:acme").Result()
		require.NoError(t, err)
		require.Len(t, groups, 1)
		require.Equal(t, "POINT-GROUP:acme", groups[0].Name)
		s.open.Store(true)
		s.settled(p, all...)
	})
}

// kindNamed is a plugin with a kind of its own.
type kindNamed struct {
	name    string
	effects *once.Effects[invoice]
}

func (k kindNamed) Name() string                        { return k.name }
func (k kindNamed) Register(r *pipeline.Registry) error { return k.effects.Register(r) }
func newKind(o *once.Plugin, name string, n once.Names) kindNamed {
	config := once.DefaultKind("")
	config.Via = once.ViaStreams
	return kindNamed{name, once.New(o, once.Kind[invoice]{
		Name: name, Repeat: once.Never, Names: n,
		Key:  func(i invoice) (once.Key, error) { return i.key(), nil },
		Call: func(context.Context, once.Attempt[invoice]) once.Answer { return once.Answer{} },
	}, &config)}
}

// Two groups can't have one stream, of whatever kinds they are, and no key is a stream and a set.
func TestNamesInRedisAreOfOneThing(t *testing.T) {
	t.Parallel()
	register := func(names ...once.Names) error {
		shared := redis.New()
		o := oncetest.New(t).Once.UseStreams(shared)
		plugins := []pipeline.Plugin{shared, o}
		for i, n := range names {
			plugins = append(plugins, newKind(o, []string{"point", "voucher"}[i], n))
		}
		_, err := pipeline.NewRegistry(pipeline.Env{}, plugins...)
		return err
	}
	point := once.Names{Stream: "POINT-STREAM:", StreamGroup: "GROUP:", ActiveSet: "POINT-ACTIVE"}
	for name, c := range map[string]struct {
		names []once.Names
		want  string
	}{
		"derived":             {[]once.Names{{}, {}}, ""},
		"of one owner":        {[]once.Names{point, {Stream: "VOUCHER-STREAM:", StreamGroup: "GROUP:", ActiveSet: "VOUCHER-ACTIVE"}}, ""},
		"longer":              {[]once.Names{{Stream: "S:"}, {Stream: "S:voucher:"}}, ""},
		"one stream":          {[]once.Names{point, {Stream: "POINT-STREAM:"}}, `kind "voucher" with the streams POINT-STREAM:…`},
		"derived by another":  {[]once.Names{{}, {Stream: "once:point:"}}, "would have one key in Redis"},
		"one set":             {[]once.Names{point, {ActiveSet: "POINT-ACTIVE"}}, "would have one key in Redis"},
		"a set in streams":    {[]once.Names{point, {ActiveSet: "POINT-STREAM:active"}}, "would have one key in Redis"},
		"streams with a set":  {[]once.Names{{}, {Stream: "once-active:", ActiveSet: "VOUCHER-ACTIVE"}}, "would have one key in Redis"},
		"a set in its own":    {[]once.Names{{Stream: "P:", ActiveSet: "P:active"}}, "its active set P:active could be one of its streams P:…"},
		"a set below its own": {[]once.Names{{Stream: "P:", ActiveSet: "P:x:active"}}, ""},
		"no colon":            {[]once.Names{{Stream: "POINT-STREAM"}}, `Names: stream: must be letters`},
		"two colons":          {[]once.Names{{Stream: "POINT::"}}, `Names: stream: must be letters`},
		"a colon before":      {[]once.Names{{Stream: ":POINT:"}}, `Names: stream: must be letters`},
		"a brace":             {[]once.Names{{StreamGroup: "{POINT}:"}}, `Names: stream_group: must be letters`},
		"a pattern":           {[]once.Names{{Stream: "POINT*:"}}, `Names: stream: must be letters`},
		"a set with a brace":  {[]once.Names{{ActiveSet: "{ACTIVE}"}}, `Names: active_set: must be letters`},
	} {
		err := register(c.names...)
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// plainFields reads the fields that any client sees, for the subscriber of another program.
type plainFields struct{}

func (plainFields) Unmarshal(values map[string]any) (*message.Message, error) {
	payload, ok := values["message"].(string)
	uuid, _ := values["uuid"].(string)
	if !ok {
		return nil, errors.New("no message")
	}
	m := message.NewMessage(uuid, []byte(payload))
	for _, name := range []string{"key", "headers"} {
		value, _ := values[name].(string)
		m.Metadata.Set(name, value)
	}
	return m, nil
}

// Another program reads the records of effects with Watermill's own subscriber and a group of its own, while the effects
// are called for once.
func TestOtherProgramsReadTheRecords(t *testing.T) {
	t.Parallel()
	eachRecording(t, func(t *testing.T, s *spreading) {
		w, p := s.start(func(k *once.Kind[invoice], c *once.KindConfig) {
			owned(k, c)
			withRecords(k, c)
			c.Streams.RequiredGroups = []string{"reporting"}
		})
		const n = 30
		require.NoError(t, s.client.XGroupCreateMkStream(t.Context(), "POINT-STREAM:acme", "reporting", "0").Err())
		client := goredis.NewClient(&goredis.Options{Addr: s.addr, DB: s.db}) // Close of the subscriber closes it
		sub, err := lib.NewSubscriber(lib.SubscriberConfig{
			Client: client, ConsumerGroup: "reporting", Unmarshaller: plainFields{}, BlockTime: 10 * millisecond, DisableIndefiniteInitialBlock: true,
		}, watermill.NopLogger{})
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Close()) }()
		read, err := sub.Subscribe(t.Context(), "POINT-STREAM:acme")
		require.NoError(t, err)

		all, want := invoicesOf("acme", n), map[string]string{}
		for _, i := range all {
			payload := strings.ReplaceAll(i.payload(), ",", " ,\n") // the bytes, and not what they mean
			want[i.idempotency()] = payload
			m := message.NewMessage("x", []byte(payload))
			m.Metadata = message.Metadata{pipeline.MetaKey: "k" + i.Number, "shop": "5"}
			require.NoError(t, w.Topics.Feed("invoices").Sink().Publish(t.Context(), m))
		}
		got := map[string]string{}
		for range all {
			select {
			case m := <-read:
				got[m.UUID] = string(m.Payload)
				require.Contains(t, m.Metadata["headers"], `"shop":"5"`)
				require.NotContains(t, m.Metadata["headers"], pipeline.MetaKey)
				require.Equal(t, m.UUID, "invoice:acme:"+strings.TrimPrefix(m.Metadata["key"], "k"))
				m.Ack()
			case <-time.After(minute):
				require.FailNow(t, "no entry", "%d were read", len(got))
			}
		}
		require.Equal(t, want, got)
		s.settled(p, all...)
		redistest.Eventually(t, "acknowledged", func() bool {
			pending, err := s.client.XPending(t.Context(), "POINT-STREAM:acme", "POINT-GROUP:acme").Result()
			return err == nil && pending.Count == 0
		})
	})
}

// One entry of a row is enough to claim all of its effects in one transaction, although each effect has an entry.
func TestRecordsOfARowAreClaimedTogether(t *testing.T) {
	t.Parallel()
	eachRecording(t, func(t *testing.T, s *spreading) {
		const n = 50
		s.open.Store(false)
		w, p := s.start(func(k *once.Kind[invoice], c *once.KindConfig) {
			withRecords(k, c)
			c.Concurrency = 2 * n
		})
		all := invoicesOf("acme", n)
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		entries, err := s.client.XRange(t.Context(), "once:invoice:acme", "-", "+").Result()
		require.NoError(t, err)
		require.Len(t, entries, n)
		named := 0
		for _, e := range entries {
			if !strings.Contains(e.Values["headers"].(string), `"millrace-row":"0"`) {
				named++
			}
		}
		require.Equal(t, 1, named, "the others would be further claims")
		s.open.Store(true)
		s.settled(p, all...)
		redistest.Eventually(t, "read and acknowledged", func() bool {
			groups, err := s.client.XInfoGroups(t.Context(), "once:invoice:acme").Result()
			return err == nil && groups[0].LastDeliveredID == entries[n-1].ID && groups[0].Pending == 0
		})
		claims := -1.0
		for _, series := range redistest.Gather(t, "millrace_once_batch_effects", w.Once.Collectors()...) {
			if series.Labels["operation"] == "claim" {
				claims = series.Value
			}
		}
		require.InDelta(t, 1, claims, 0)
		require.Empty(t, w.Topics.Published("invoices-dead").Messages())
	})
}

// What another program adds to a stream asks for nothing: it is a dead letter, and the entries behind it are read.
func TestAnEntryOfAnotherProgramIsADeadLetter(t *testing.T) {
	t.Parallel()
	eachRecording(t, func(t *testing.T, s *spreading) {
		w, p := s.start(withRecords)
		first, last, forged := invoicesOf("acme", 1), invoicesOf("acme", 2)[1:], invoice{Customer: "acme", Number: "forged"}
		_, err := p.effects.Enqueue(t.Context(), first...)
		require.NoError(t, err)
		for _, values := range [][]any{
			{"message", forged.payload(), "uuid", forged.idempotency(), "headers", "{}"},
			{"message", forged.payload(), "headers", `{"millrace-row":"-1"}`},
			{"message", "17"},
			{"message", forged.payload(), "uuid", "17"},
			{"message", "no JSON", "headers", "no JSON"},
			{"some", "fields"},
		} {
			require.NoError(t, s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: "once:invoice:acme", Values: values}).Err())
		}
		_, err = p.effects.Enqueue(t.Context(), last...)
		require.NoError(t, err)
		require.Equal(t, map[string]int{"foreign_entry": 5, "missing_message": 1}, deadOf(t, w, "invoices-dead", 6))
		s.settled(p, append(first, last...)...)
		redistest.Eventually(t, "acknowledged", func() bool { return s.pending("acme") == 0 })
		_, err = p.effects.State(t.Context(), forged.key())
		require.Error(t, err, "it was never accepted")
		require.Zero(t, p.far.Executed(forged.idempotency()))
	})
}

// Entries that were added before the setting was changed are read, too.
func TestEntriesOfTheOtherSettingAreRead(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{once.EntriesRows, once.EntriesRecords}, {once.EntriesRecords, once.EntriesRows}} {
		t.Run("from "+c[0], func(t *testing.T) {
			t.Parallel()
			eachSpreading(t, func(t *testing.T, s *spreading) {
				s.open.Store(false)
				with := func(entries string) func(*once.Kind[invoice], *once.KindConfig) {
					return func(_ *once.Kind[invoice], c *once.KindConfig) { c.Streams.Entries = entries }
				}
				_, p, plugins := s.instance(with(c[0]))
				stop := pipelinetest.StartUntil(t, middleware.Options{}, plugins...)
				all := invoicesOf("acme", 20)
				_, err := p.effects.Enqueue(t.Context(), all...)
				require.NoError(t, err)
				require.NoError(t, stop())
				s.open.Store(true)
				_, next := s.start(with(c[1]))
				s.settled(next, all...)
			})
		})
	}
}

// Groups beyond max_active have no stream, and their effects are found in the ledger when their grace has ended.
func TestEffectsOfFurtherGroupsWaitForTheirGrace(t *testing.T) {
	t.Parallel()
	eachRecording(t, func(t *testing.T, s *spreading) {
		w, p := s.start(func(_ *once.Kind[invoice], c *once.KindConfig) {
			c.Streams.MaxActive, c.Streams.IdleTimeout, c.Streams.Entries = 1, hour, once.EntriesRecords
		})
		with, without := invoicesOf("acme", 3), invoicesOf("zeta", 3)
		_, err := p.effects.Enqueue(t.Context(), with...)
		require.NoError(t, err)
		s.settled(p, with...)
		_, err = p.effects.Enqueue(t.Context(), without...)
		require.NoError(t, err)
		exists, err := s.client.Exists(t.Context(), "once:invoice:zeta").Result()
		require.NoError(t, err)
		require.Zero(t, exists)
		w.Turn(hour - minute)
		for _, i := range without {
			e, err := p.effects.State(t.Context(), i.key())
			require.NoError(t, err)
			require.Equal(t, rules.Pending, e.State)
		}
		w.Turn(minute)
		s.settled(p, without...)
	})
}

// A kind may have its streams on another Redis than the rest.
func TestStreamsOnARedisOfTheirOwn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		t.Parallel()
		s, own := newSpreading(t, server, sqldbtest.File(t)), server
		if server.Mini != nil {
			own = redistest.Mini(t)
		}
		db := own.Database(t)
		client := own.Client(t, func(o *goredis.Options) { o.DB = db })
		_, p := s.start(func(_ *once.Kind[invoice], c *once.KindConfig) {
			other := redis.New().Settings().(*redis.Config).ClientConfig
			other.Addrs, other.DB, other.ReadTimeout, other.WriteTimeout = []string{own.Addr}, db, redistest.Timeout, redistest.Timeout
			c.Streams.Redis = &other
		})
		all := invoicesOf("acme", 20)
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		s.settled(p, all...)
		n, err := client.Exists(t.Context(), "once:invoice:acme", "once-active:invoice").Result()
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		n, err = s.client.Exists(t.Context(), "once:invoice:acme", "once-active:invoice").Result()
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func TestSettingsOfStreamsAreChecked(t *testing.T) {
	t.Parallel()
	c := once.DefaultKind("")
	require.NoError(t, c.Validate())
	c.Streams.MaxActive, c.Streams.Entries, c.Streams.MaxLen, c.Streams.Redis = 0, "effects", 0, &redis.ClientConfig{}
	for _, want := range []string{
		"streams.max_active: must be >= 1, got 0", `streams.entries: must be rows or records, got "effects"`, "streams.max_len: must be > 0, got 0", "streams.redis.addrs",
	} {
		require.ErrorContains(t, c.Validate(), want)
	}
}
