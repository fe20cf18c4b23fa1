package redis

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// startWith starts the plugin with these domains, and stops it at once.
func startWith(t *testing.T, c goredis.UniversalClient, user string, domains ...DomainConfig) error {
	t.Helper()
	p := New()
	p.cfg.Addrs, p.cfg.Domains = []string{c.(*goredis.Client).Options().Addr}, domains
	if user != "" {
		p.cfg.Username, p.cfg.Password = user, setting.NewSecret(user)
	}
	require.NoError(t, p.cfg.Validate())
	p.env = pipeline.Env{Logger: slog.New(slog.DiscardHandler), Instance: redistest.Prefix(t, c)}
	err := service{p}.Start(t.Context())
	require.NoError(t, service{p}.Stop(context.Background()))
	require.NoError(t, c.HDel(t.Context(), instancesKey, p.env.Instance).Err())
	return err
}

// The first start of a domain decides about its shards, its group and exclusive. Another start is
// refused, and changes nothing.
func TestADomainKeepsItsShardsAndItsGroup(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		prefix := redistest.Prefix(t, c)
		scan, chat := DomainConfig{Prefix: prefix + "scan", Shards: 4, Group: "router"}, DomainConfig{Prefix: prefix + "chat", Shards: 2, Group: "router"}
		require.NoError(t, startWith(t, c, "", scan))
		require.NoError(t, startWith(t, c, "", scan, chat), "the same, and one more")
		more, other := scan, chat
		more.Shards, other.Group = 8, "second"
		err := startWith(t, c, "", more, other)
		var exit *app.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, app.ExitUsage, exit.Code)
		require.ErrorContains(t, err, prefix+`scan was first started with shards 4, group "router" and exclusive false, the settings have shards 8, group "router" and exclusive false`)
		require.ErrorContains(t, err, prefix+`chat was first started with shards 2, group "router" and exclusive false, the settings have shards 2, group "second" and exclusive false`)
		require.ErrorContains(t, err, "redis-cli DEL millrace:domain:"+prefix+"scan")
		require.NoError(t, startWith(t, c, "", scan, chat), "the refused start has changed nothing")
		exclusive := chat
		exclusive.Exclusive = true
		err = startWith(t, c, "", exclusive)
		require.ErrorAs(t, err, &exit)
		require.ErrorContains(t, err, `and exclusive false, the settings have shards 2, group "router" and exclusive true`)
		require.NoError(t, c.HDel(t.Context(), "millrace:domain:"+prefix+"chat", "exclusive").Err(), "an earlier version has not stored it")
		require.NoError(t, startWith(t, c, "", exclusive))
		require.ErrorContains(t, startWith(t, c, "", chat), "exclusive true, the settings")
		require.NoError(t, c.Del(t.Context(), "millrace:domain:"+prefix+"scan").Err())
		require.NoError(t, startWith(t, c, "", more))
		require.ErrorContains(t, startWith(t, c, "", scan), "shards 8")
	})
}

// A user with the rights of the README can use a domain. A user without a right on the shards, or
// on their companions, is refused at the start.
func TestRightsOfADomain(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	rules := regexp.MustCompile(`(?s)\nACL SETUSER millrace on >PASSWORD (.*?)\n` + "```").FindSubmatch(readme)
	require.NotNil(t, rules)
	rights := strings.ReplaceAll(string(rules[1]), "\\\n", " ")
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		admin := s.Client(t)
		prefix := redistest.Prefix(t, admin)
		user := func(name, rights string) string {
			name = prefix + name
			args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + name}
			for _, rule := range strings.Fields(rights) {
				args = append(args, rule)
			}
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			t.Cleanup(func() { _ = admin.Do(context.Background(), "ACL", "DELUSER", name).Err() })
			return name
		}
		d := DomainConfig{Prefix: prefix + ":events", Shards: 2, Group: "g", Fields: true}
		readmes := user("readme", rights)
		p, _, _ := trims(t, admin, func(cfg *Config) {
			cfg.Username, cfg.Password, cfg.Domains = readmes, setting.NewSecret(readmes), []DomainConfig{d}
		})
		reads(t, p.Domain(d.Prefix).Source())
		fill(t, p.Client(), d.Stream(1), 3)
		redistest.Eventually(t, "all is acknowledged and trimmed", func() bool {
			return redistest.Metric(t, p.ReaderMetrics(), "acks_total") == 3 && admin.XLen(t.Context(), d.Stream(1)).Val() == 0
		})
		log, err := admin.Do(t.Context(), "ACL", "LOG", 128).Result()
		require.NoError(t, err)
		require.NotContains(t, fmt.Sprint(log), readmes, "the server has refused a command")

		others := strings.NewReplacer("~*:events:*", "", "~{*:events:*}:*", "").Replace(rights)
		for key, rights := range map[string]string{
			d.Prefix + ":probe":             others + " ~{*:events:*}:*",
			"{" + d.Prefix + ":probe}:meta": others + " ~" + d.Prefix + ":*",
		} {
			err := startWith(t, admin, user("less", rights), d)
			require.ErrorIs(t, err, pipeline.ErrUnavailable)
			require.ErrorContains(t, err, fmt.Sprintf("%q", key))
		}
		err = startWith(t, admin, user("expire", rights+" -pexpire"), d)
		require.ErrorContains(t, err, "pexpire")
		require.Empty(t, admin.Keys(t.Context(), "*"+d.Prefix+":probe*").Val())
	})
}

// A plugin that uses more commands is refused at the start without one of them.
func TestRightsOfAServer(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		admin := s.Client(t)
		name := redistest.Prefix(t, admin)
		t.Cleanup(func() { _ = admin.Do(context.Background(), "ACL", "DELUSER", name).Err() })
		start := func(denied string, commands ...string) error {
			args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + name, "~*", "+@all"}
			for _, rule := range strings.Fields(denied) {
				args = append(args, rule)
			}
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			own := DefaultClientConfig()
			own.Addrs, own.Username, own.Password = []string{s.Addr}, name, setting.NewSecret(name)
			server := New().Server(&own, name)
			server.Commands = commands
			err := server.Start(t.Context())
			require.NoError(t, server.Stop(t.Context()))
			redistest.Eventually(t, "the probe is gone", func() bool { return admin.Exists(t.Context(), name).Val() == 0 })
			return err
		}
		all := []string{
			"zadd", "zrem", "zcard", "zrank", "zrange", "zrangebyscore", "zscore", "zmscore", "sadd", "srem", "scard", "smembers", "hexists", "hincrby",
			"mset", "unlink", "rename", "wait",
		}
		require.NoError(t, start("", all...))
		require.NoError(t, start("-zadd -wait"), "it uses neither")
		for _, one := range all {
			err := start("-"+one, all...)
			require.ErrorIs(t, err, pipeline.ErrUnavailable)
			require.ErrorContains(t, err, fmt.Sprintf("on key %q: %s", name, one))
		}
		require.ErrorContains(t, start("-del -zadd", all...), "del, zadd")
		require.ErrorContains(t, start("", "zunion"), "no arguments for zunion")
	})
}
