package streams

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// ownServers runs f on a Redis and on a Valkey that are this test's own.
func ownServers(t *testing.T, f func(t *testing.T, s server), options ...string) {
	t.Helper()
	redistest.EachOwn(t, func(t *testing.T, own *redistest.Own) { f(t, newServer(t, own.Server)) }, options...)
}

// full makes the server refuse everything that may need memory, or ends that.
func (s server) full(t testing.TB, full bool) {
	t.Helper()
	require.NoError(t, s.client.ConfigSet(t.Context(), "maxmemory", map[bool]string{true: "1", false: "0"}[full]).Err())
	err := s.client.Set(t.Context(), s.prefix+":probe", "x", 0).Err()
	if full {
		require.ErrorContains(t, err, "OOM")
	} else {
		require.NoError(t, err)
	}
}

// A full server refuses only the first write of a script. The scripts of these plugins need that.
func TestAFullServerRefusesOnlyTheFirstWrite(t *testing.T) {
	ownServers(t, func(t *testing.T, s server) {
		s.full(t, true)
		key := []string{s.prefix + ":h"}
		require.ErrorContains(t, s.client.Eval(t.Context(), "return redis.call('HSET', KEYS[1], 'a', 'b')", key).Err(), "OOM")
		for _, first := range []string{"'HDEL', KEYS[1], ''", "'DEL', KEYS[1]", "'XTRIM', KEYS[1] .. 's', 'MAXLEN', 0"} {
			require.NoError(t, s.client.Eval(t.Context(), "redis.call("+first+"); return redis.call('HSET', KEYS[1], 'a', 'b')", key).Err(), first)
		}
	})
}

// A full server is freed by what the instances do anyway: visits trim, clean-ups delete. New
// entries stay refused.
func TestAFullServerIsFreed(t *testing.T) {
	ownServers(t, func(t *testing.T, s server) {
		c := quick()
		c.IdleTimeout = time.Millisecond
		in := newInstance(t, s, "a", newActiveSet(), c)
		ctx := t.Context()
		stream, group := in.opts.Kind.Stream("1"), in.opts.Kind.Group("1")
		require.NoError(t, in.Ensure(ctx, "1"))
		_, err := in.addEntries(ctx, "1", entries(0, 20))
		require.NoError(t, err)
		require.NoError(t, s.client.XAck(ctx, stream, group, readSome(t, s, stream, group, "a-0", 20)...).Err())
		s.full(t, true)

		require.NoError(t, in.Ensure(ctx, "1"), "what exists is read")
		require.NoError(t, s.client.HDel(ctx, MetaKey(stream), "incarnation").Err())
		require.NoError(t, in.Ensure(ctx, "1"), "whatever its companion has lost")
		err = in.Ensure(ctx, "2")
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, ErrRefused)
		_, err = in.Enqueue(ctx, "1", newEntry("x"))
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, ErrRefused, "it concerns all streams")

		got := visitOnce(t, in, "1")
		require.EqualValues(t, 20, got.trimmed)
		require.Zero(t, got.length)
		statuses, _, err := in.Look(ctx, "1")
		require.NoError(t, err)
		require.Len(t, statuses, 1)
		redistest.Eventually(t, "it is deleted", func() bool { return in.Decommission(ctx, "1") })
		require.Zero(t, s.client.Exists(ctx, stream, MetaKey(stream)).Val())
	})
}

// An instance starts on a full server, drains it, is seen to live, and takes over from one that is
// gone.
func TestAnInstanceStartsOnAFullServer(t *testing.T) {
	ownServers(t, func(t *testing.T, s server) {
		ctx := t.Context()
		active := newActiveSet("1")
		c := quick()
		in := newInstance(t, s, "test", active, c)
		require.NoError(t, in.Ensure(ctx, "1"))
		_, err := in.addEntries(ctx, "1", entries(0, 10))
		require.NoError(t, err)
		readSome(t, s, in.opts.Kind.Stream("1"), in.opts.Kind.Group("1"), "dead-0", 5)
		require.NoError(t, s.client.HSet(ctx, "millrace:instances", "dead", time.Now().UnixMilli()).Err())
		plain := s.prefix + ":plain"
		require.NoError(t, s.client.XGroupCreateMkStream(ctx, plain, "g", "0").Err())
		require.NoError(t, s.client.XAdd(ctx, &goredis.XAddArgs{Stream: plain, Values: []any{"message", "plain"}}).Err())
		s.full(t, true)

		shared := redis.New()
		shared.Settings().(*redis.Config).Addrs = []string{s.Addr}
		claims := reclaim.New(shared)
		claims.Settings().(*reclaim.Config).DeadCheck, claims.Settings().(*reclaim.Config).PresenceTimeout = 10*time.Millisecond, time.Millisecond
		handled := make(chan string, 100)
		startAs(t, "test", shared, claims, &onePlugin{func(r *pipeline.Registry) {
			r.Offer(in.ReclaimTarget())
			r.Route(pipeline.Route{Name: "plain", From: shared.Source(plain, "g"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, Handle: func(m *message.Message) ([]*message.Message, error) {
				handled <- string(m.Payload)
				return nil, nil
			}})
		}})
		in.open(t, pipeline.Flow{}, nil)
		require.Equal(t, "plain", <-handled)
		redistest.Eventually(t, "everything is handled, what the dead instance held too", func() bool { return len(in.done()) == 10 })
		redistest.Eventually(t, "the idle stream is deleted", func() bool { return s.client.Exists(ctx, in.opts.Kind.Stream("1")).Val() == 0 })
		alive, err := redis.Alive(ctx, s.client, "test", "dead")
		require.NoError(t, err)
		require.Equal(t, map[string]bool{"test": true, "dead": false}, alive)
		require.ErrorContains(t, s.client.Set(ctx, "x", "x", 0).Err(), "OOM", "it was full all the time")
	})
}

// startAs starts the plugins as the instance of this name until the test ends.
func startAs(t *testing.T, instance string, plugins ...pipeline.Plugin) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: instance, Logger: pipelinetest.Logger(t)}, plugins...)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	require.NoError(t, rt.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, rt.Stop(context.Background())) })
}

// onePlugin is a plugin of one function.
type onePlugin struct{ register func(*pipeline.Registry) }

func (*onePlugin) Name() string { return "one" }
func (p *onePlugin) Register(r *pipeline.Registry) error {
	p.register(r)
	return nil
}

// A start ends as unavailable when the server is full, or when a right is missing.
func TestAStartThatCannotRead(t *testing.T) {
	ownServers(t, func(t *testing.T, s server) {
		start := func(user string) error {
			shared := redis.New()
			cfg := shared.Settings().(*redis.Config)
			cfg.Addrs, cfg.Username, cfg.Password = []string{s.Addr}, user, setting.NewSecret(user)
			if user == "" {
				cfg.Password = setting.Secret{}
			}
			reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "i" + user}, shared, &onePlugin{func(r *pipeline.Registry) {
				r.Route(pipeline.Route{Name: "plain", From: shared.Source(s.prefix+":new", "g"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil }})
			}})
			require.NoError(t, err)
			rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{
				StopTimeout: 10 * time.Second,
				Wrap:        func(r pipeline.Route) (message.HandlerFunc, func(*message.Message)) { return r.Handle, nil },
			})
			defer func() { _ = rt.Stop(context.Background()) }()
			return rt.Start(t.Context())
		}
		s.full(t, true)
		err := start("")
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
		require.ErrorContains(t, err, "the server is full")
		s.full(t, false)

		for user, rules := range map[string][]any{
			"noclaim": {"~*", "+@all", "-xclaim"},
			"nodel":   {"~*", "+@all", "-del"},
			"nohdel":  {"~*", "+@all", "-hdel"},
			"noevals": {"~*", "+@all", "-evalsha"},
			"nokeys":  {"~other*", "+@all"},
		} {
			args := append([]any{"ACL", "SETUSER", user, "on", ">" + user}, rules...)
			require.NoError(t, s.client.Do(t.Context(), args...).Err())
			for range 2 { // the first one leaves nothing behind that could hide what is missing
				err := start(user)
				require.ErrorIs(t, err, pipeline.ErrUnavailable, user)
				require.ErrorContains(t, err, map[string]string{
					"noclaim": `may not run these commands on key "millrace:probe": xclaim`,
					"nodel":   `may not run these commands on key "millrace:probe": del`,
					"nohdel":  `may not run these commands on key "millrace:probe": hdel`,
					"noevals": "evalsha", "nokeys": "millrace:probe",
				}[user], fmt.Sprint(rules))
				redistest.Eventually(t, "the probe is gone", func() bool { return s.client.Exists(t.Context(), "millrace:probe").Val() == 0 })
			}
		}
		require.NoError(t, s.client.Do(t.Context(), "ACL", "SETUSER", "enough", "on", ">enough", "~*", "+@all", "-xautoclaim").Err())
		require.NoError(t, start("enough"), "a right that nothing needs")
	})
}
