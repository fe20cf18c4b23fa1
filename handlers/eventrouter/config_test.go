package eventrouter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	for want, change := range map[string]func(*Config){
		"":                                    func(*Config) {},
		"roles: must have":                    func(c *Config) { c.Roles = nil },
		"roles[0]: must be router or gateway": func(c *Config) { c.Roles = []string{"worker"} },
		`roles[1]: "router" is in the list`:   func(c *Config) { c.Roles = []string{"router", "router"} },
		"domains: must have":                  func(c *Config) { c.Domains = nil },
		"domains[1]: domain scan is that of \"scan:events\" already": func(c *Config) { c.Domains = []string{"scan:events", "scan:other"} },
		"domains[0]: must begin with the name":                       func(c *Config) { c.Domains = []string{"a/b:events"} },
		"terminal_stages: must have":                                 func(c *Config) { c.Terminal = nil },
		`terminal_stages[0]: "token" must not be in`:                 func(c *Config) { c.Terminal = []string{"token"} },
		"transient_stages[0]: must be a stage":                       func(c *Config) { c.Transient = []string{""} },
		"max_deliveries: must be >= 0":                               func(c *Config) { c.MaxDeliveries = -1 },
		"log_max: must be":                                           func(c *Config) { c.Logs.LogMax = 0 },
		"gap_wait: must be >= 0":                                     func(c *Config) { c.Gateway.GapWait = -time.Second },
		"redis.addrs: must name":                                     func(c *Config) { c.Redis = &redis.ClientConfig{DialTimeout: 1, ReadTimeout: 1, WriteTimeout: 1} },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	c := DefaultConfig()
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

	// A domain that nobody reads.
	vision := redis.DomainConfig{Prefix: "vision:events", Shards: 8, Group: "eventrouter", Fields: true, Exclusive: true}
	shared.Domains = append(shared.Domains, vision)
	require.ErrorContains(t, p.ValidateIn(app.Where{}), `domains: must have "vision:events": plugins.redis.domains has it with the group eventrouter`)
	p.config.Roles = []string{roleGateway}
	require.NoError(t, p.ValidateIn(app.Where{}), "the router of another process may read it")
	p.config.Roles = []string{roleRouter}
	shared.Domains[1].Group = "another plugin"
	require.NoError(t, p.ValidateIn(app.Where{}))
}

func TestARoleNeedsItsPlugins(t *testing.T) {
	t.Parallel()
	p, _ := newPlugin()
	p.config.Roles = []string{roleRouter}
	require.Equal(t, []string{"redis", "deadletter", "reclaim"}, p.Needs())
	p.config.Roles = []string{roleGateway}
	require.Equal(t, []string{"redis", "token", "sse", "web"}, p.Needs())
}
