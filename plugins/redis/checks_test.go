package redis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// diagnoseLimit is long, because the machine of a test may be busy.
const diagnoseLimit = 2 * time.Minute

// guest is a plugin with a server of its own.
type guest struct {
	p   *redis.Plugin
	own *redis.ClientConfig
}

func (g guest) Name() string { return "guest" }
func (g guest) Register(r *pipeline.Registry) error {
	s := g.p.Server(g.own, "guest:probe")
	s.Commands = []string{"sadd", "srem"}
	r.Service("guest.redis", s)
	return nil
}

// diagnose returns the checks of a plugin whose settings change has changed, by name.
func diagnose(t *testing.T, addr string, change func(*redis.Config), guests ...func(*redis.Plugin) pipeline.Plugin) (map[string]operate.Check, operate.Diagnosis) {
	t.Helper()
	p := redis.New()
	cfg, ok := p.Settings().(*redis.Config)
	require.True(t, ok)
	cfg.Addrs = []string{addr}
	if change != nil {
		change(cfg)
	}
	plugins := []pipeline.Plugin{p}
	for _, g := range guests {
		plugins = append(plugins, g(p))
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, plugins...)
	require.NoError(t, err)
	d := operate.Diagnose(t.Context(), operate.Examinations(reg), diagnoseLimit, nil)
	checks := map[string]operate.Check{}
	for _, c := range d.Checks {
		require.NotContains(t, checks, c.Name)
		require.Equal(t, c.Level == operate.OK, c.Remedy == "", c)
		checks[c.Name] = c
	}
	return checks, d
}

func TestChecksOfAServer(t *testing.T) {
	t.Parallel()
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		t.Parallel()
		c := s.Client(t)
		set := func(name, value string) { require.NoError(t, c.ConfigSet(t.Context(), name, value).Err()) }
		expect := func(level operate.Level, name, text string) {
			t.Helper()
			checks, _ := diagnose(t, s.Addr, nil)
			require.Equal(t, level, checks[name].Level, checks[name])
			require.Contains(t, checks[name].Text, text)
		}
		checks, d := diagnose(t, s.Addr, nil)
		require.Len(t, checks, 8, d.Checks)
		require.Empty(t, d.Away)
		require.Equal(t, operate.OK, checks["redis version"].Level)
		require.Regexp(t, `^(Redis|Valkey) \d+\.`, checks["redis version"].Text)
		require.Equal(t, operate.OK, checks["redis eviction"].Level)
		require.Equal(t, operate.OK, checks["redis rights"].Level)
		require.Equal(t, operate.OK, checks["redis clock"].Level, checks["redis clock"])
		require.Regexp(t, `^a command takes .*s$`, checks["redis latency"].Text)
		exists, err := c.Exists(t.Context(), "millrace:probe").Result()
		require.NoError(t, err)
		require.Zero(t, exists, "it leaves nothing behind")

		set("maxmemory-policy", "allkeys-lru")
		expect(operate.Fail, "redis eviction", "allkeys-lru")
		set("maxmemory-policy", "noeviction")

		expect(operate.Warn, "redis memory", "maxmemory is not set")
		set("maxmemory", "10gb")
		expect(operate.OK, "redis memory", "0 % of maxmemory (10240 MiB)")
		set("maxmemory", "1mb")
		expect(operate.Fail, "redis memory", "a full server refuses writes")
		set("maxmemory", "0")

		expect(operate.Warn, "redis persistence", "append-only file is off")
		set("appendonly", "yes")
		redistest.Eventually(t, "the file is written", func() bool {
			info := c.Info(t.Context(), "persistence").Val()
			return strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
		})
		expect(operate.OK, "redis persistence", "append-only file is on")

		expect(operate.Warn, "redis replicas", "no replica")
		replica := s.Replica()
		expect(operate.Warn, "redis replicas", "1 connected, and min-replicas-to-write is 0")
		set("min-replicas-to-write", "1")
		redistest.Eventually(t, "the replica counts", func() bool {
			return strings.Contains(c.Info(t.Context(), "replication").Val(), "min_slaves_good_slaves:1")
		})
		expect(operate.OK, "redis replicas", "1 connected, 1 of them up to date")
		checks, _ = diagnose(t, replica.Addr, nil)
		require.Equal(t, operate.Fail, checks["redis replicas"].Level)
		require.Contains(t, checks["redis replicas"].Text, "is a replica")
	})
}

// The rights are those of a start, of all plugins that use the server.
func TestChecksOfRights(t *testing.T) {
	t.Parallel()
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		t.Parallel()
		c := s.Client(t)
		user := func(rules ...any) {
			t.Helper()
			require.NoError(t, c.Do(t.Context(), append([]any{"ACL", "SETUSER", "doctor", "reset", "on", ">secret", "~*"}, rules...)...).Err())
		}
		as := func(cfg *redis.Config) { cfg.Username, cfg.Password = "doctor", setting.NewSecret("secret") }
		shared := func(p *redis.Plugin) pipeline.Plugin { return guest{p, nil} }

		user("+@all")
		checks, _ := diagnose(t, s.Addr, as, shared)
		require.Equal(t, operate.OK, checks["redis rights"].Level, checks["redis rights"])
		require.Contains(t, checks["redis rights"].Text, "2 keys tried")

		user("+@all", "-srem")
		checks, d := diagnose(t, s.Addr, as, shared)
		require.Equal(t, operate.Fail, checks["redis rights"].Level)
		require.Contains(t, checks["redis rights"].Text, `on key "guest:probe": srem`)
		require.Empty(t, d.Away, "the server is there")

		user("+@all", "-evalsha")
		checks, d = diagnose(t, s.Addr, as)
		require.Equal(t, operate.Fail, checks["redis rights"].Level)
		require.Contains(t, checks["redis rights"].Text, `on key "millrace:probe": eval, evalsha`)
		require.Contains(t, checks["redis rights"].Remedy, "grant the ACL user")
		require.Empty(t, d.Away)

		user("+@all", "-info")
		checks, d = diagnose(t, s.Addr, as)
		for _, what := range []string{"version", "eviction", "memory", "persistence", "replicas"} {
			require.Equal(t, operate.Warn, checks["redis "+what].Level)
			require.Contains(t, checks["redis "+what].Text, "not known: NOPERM")
		}
		require.Empty(t, d.Away)

		own := redis.DefaultClientConfig()
		own.Addrs = []string{strings.Replace(s.Addr, "127.0.0.1", "localhost", 1)}
		checks, d = diagnose(t, s.Addr, nil, func(p *redis.Plugin) pipeline.Plugin { return guest{p, &own} })
		require.Equal(t, operate.OK, checks["redis at "+own.Addrs[0]+" rights"].Level, d.Checks)

		wrong := func(cfg *redis.Config) { cfg.Username, cfg.Password = "doctor", setting.NewSecret("wrong") }
		checks, d = diagnose(t, s.Addr, wrong)
		require.Contains(t, checks["redis"].Text, "WRONGPASS")
		require.Equal(t, []string{"redis"}, d.Away)
	})
}

func TestChecksOfAnAbsentServer(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	s.Mini.Close()
	checks, d := diagnose(t, s.Addr, nil)
	require.Len(t, checks, 1)
	require.Equal(t, operate.Fail, checks["redis"].Level)
	require.Contains(t, checks["redis"].Text, s.Addr)
	require.Equal(t, []string{"redis"}, d.Away)
}

// A Cluster has checks of each primary, with its address.
func TestChecksOfACluster(t *testing.T) {
	t.Parallel()
	first, second, proxy := redistest.MiniCluster(t)
	p := redis.New()
	cfg, _ := p.Settings().(*redis.Config)
	cfg.Addrs, cfg.Cluster = []string{first.Addr}, true
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	require.NotEqual(t, first.Addr, second.Addr)
	d := operate.Diagnose(context.Background(), operate.Examinations(reg), diagnoseLimit, nil)
	var latency []string
	for _, c := range d.Checks {
		if c.Name == "redis latency" {
			at, _, _ := strings.Cut(c.Text, ": ")
			latency = append(latency, at)
		}
	}
	require.ElementsMatch(t, []string{first.Addr, proxy.Addr()}, latency, d.Checks)
}

// The server inside the process has no INFO, which is one warning and no right that is missing.
func TestAServerWithoutInfo(t *testing.T) {
	t.Parallel()
	checks, d := diagnose(t, miniredis.RunT(t).Addr(), nil)
	for name, c := range checks {
		if name != "redis latency" { // a busy machine may have one
			require.Equal(t, name == "redis version", c.Level == operate.Warn, d.Checks)
		}
	}
	require.Contains(t, checks["redis version"].Text, "section (server) is not supported")
	require.NotContains(t, checks["redis version"].Remedy, "right")
	require.Zero(t, d.Failures, d.Checks)
	require.NotContains(t, checks, "redis memory")
}
