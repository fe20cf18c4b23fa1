package eventrouter

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func newPlugin() (*Plugin, *redis.Config) {
	shared, tokens, hubs := redis.New(), token.New(), sse.New()
	p := New(shared, deadletter.New(kafka.New(), shared), tokens, hubs, web.New(tokens, hubs))
	return p, shared.Settings().(*redis.Config)
}

func TestMistakesInSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*config){
		"":                                    func(*config) {},
		"roles: must have":                    func(c *config) { c.Roles = nil },
		"roles[0]: must be router or gateway": func(c *config) { c.Roles = []string{"worker"} },
		`roles[1]: "router" is in the list`:   func(c *config) { c.Roles = []string{"router", "router"} },
		"domains: must have":                  func(c *config) { c.Domains = nil },
		"domains[1]: domain scan is that of \"scan:events\" already": func(c *config) { c.Domains = []string{"scan:events", "scan:other"} },
		"domains[0]: must begin with the name":                       func(c *config) { c.Domains = []string{"a/b:events"} },
		"terminal_stages: must have":                                 func(c *config) { c.Terminal = nil },
		`terminal_stages[0]: "token" must not be in`:                 func(c *config) { c.Terminal = []string{"token"} },
		"transient_stages[0]: must be a stage":                       func(c *config) { c.Transient = []string{""} },
		"max_deliveries: must be >= 0":                               func(c *config) { c.MaxDeliveries = -1 },
		"log_max: must be":                                           func(c *config) { c.Logs.LogMax = 0 },
		"gap_wait: must be >= 0":                                     func(c *config) { c.Gateway.GapWait = -time.Second },
		"redis.addrs: must name":                                     func(c *config) { c.Redis = &redis.ClientConfig{DialTimeout: 1, ReadTimeout: 1, WriteTimeout: 1} },
	} {
		c := defaultConfig()
		change(&c)
		if err := c.Validate(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	c := defaultConfig()
	require.False(t, c.EnabledByDefault())
}

func TestDomainsHaveTheirSettings(t *testing.T) {
	t.Parallel()
	p, shared := newPlugin()
	p.config.Domains = []string{"scan:events"}
	require.ErrorContains(t, p.ValidateIn(app.Where{}), `add {prefix: "scan:events", shards: 8, group: eventrouter, fields: true, exclusive: true}`)
	domain := redis.DomainConfig{Prefix: "scan:events", Shards: 8, Group: "eventrouter"}
	shared.Domains = []redis.DomainConfig{domain}
	require.ErrorContains(t, p.ValidateIn(app.Where{}), "must have exclusive: true")
	require.ErrorContains(t, p.ValidateIn(app.Where{}), "must have fields: true")
	p.config.Roles = []string{roleGateway}
	require.NoError(t, p.ValidateIn(app.Where{}), "a gateway reads no shard")
	p.config.Roles = []string{roleRouter}
	shared.Domains[0].Fields, shared.Domains[0].Exclusive = true, true
	require.NoError(t, p.ValidateIn(app.Where{}))
}

// Routers may be split by domain, so a domain that this process does not read is no mistake, but may
// have been forgotten.
func TestADomainThatTheRouterDoesNotRead(t *testing.T) {
	t.Parallel()
	warnings := func(role, group string) string {
		p, shared := newPlugin()
		p.config.Roles, p.config.Domains = []string{role}, []string{"scan:events"}
		for prefix, group := range map[string]string{"scan:events": "eventrouter", "vision:events": group} {
			shared.Domains = append(shared.Domains, redis.DomainConfig{Prefix: prefix, Shards: 8, Group: group, Fields: true, Exclusive: true})
		}
		shared.Domains = append(shared.Domains, // of another plugin, whose group has the same name
			redis.DomainConfig{Prefix: "mail:events", Shards: 8, Group: "eventrouter", Exclusive: true},
			redis.DomainConfig{Prefix: "news:events", Shards: 8, Group: "eventrouter", Fields: true})
		require.NoError(t, p.ValidateIn(app.Where{}))
		var log strings.Builder
		_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))}, p)
		require.NoError(t, err)
		return log.String()
	}
	log := warnings(roleRouter, "eventrouter")
	require.Equal(t, 1, strings.Count(log, "\n"), log)
	require.Contains(t, log, `level=WARN msg="the router of this process does not read a domain of its group: unless another process does, add the domain to plugins.eventrouter.domains" domain=vision:events group=eventrouter`)
	require.Empty(t, warnings(roleRouter, "another plugin"))
	require.Empty(t, warnings(roleGateway, "eventrouter"), "a gateway reads no shard")
}

func TestARoleNeedsItsPlugins(t *testing.T) {
	t.Parallel()
	p, _ := newPlugin()
	p.config.Roles = []string{roleRouter}
	require.Equal(t, []string{"redis", "deadletter", "reclaim"}, p.Needs())
	p.config.Roles = []string{roleGateway}
	require.Equal(t, []string{"redis", "token", "sse", "web"}, p.Needs())
}
