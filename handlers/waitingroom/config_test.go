package waitingroom

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func newPlugin() (*Plugin, *web.Config) {
	shared, tokens, hubs := redis.New(), token.New(), sse.New()
	public := web.New(tokens, hubs)
	p := New(shared, deadletter.New(kafka.New(), shared), tokens, hubs, public)
	return p, public.Settings().(*web.Config)
}

func TestMistakesInSettings(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*config){
		"":                                     func(*config) {},
		"roles: must have":                     func(c *config) { c.Roles = nil },
		"roles[0]: must be broker or dispatch": func(c *config) { c.Roles = []string{"worker"} },
		`roles[1]: "broker" is in the list`:    func(c *config) { c.Roles = []string{"broker", "broker"} },
		"promote_interval: must be":            func(c *config) { c.Dispatcher.PromoteInterval = 0 },
		"promote_interval: must be from 100ms to 3s, got 4s":   func(c *config) { c.Dispatcher.PromoteInterval = 4 * time.Second },
		"promoter.workers: must be":                            func(c *config) { c.Dispatcher.Promoter.Workers = 0 },
		"broadcast_interval: must be":                          func(c *config) { c.Broker.BroadcastInterval = 0 },
		"broadcast_interval: must be from 100ms to 3s, got 4s": func(c *config) { c.Broker.BroadcastInterval = 4 * time.Second },
		"promote_batch: must be from 1 to 500":                 func(c *config) { c.PromoteBatch = 501 },
		"token_ttl: must be from 1s":                           func(c *config) { c.TokenTTL = 0 },
		"max_turn: must be from 0s to 1h0m0s, got 2h0m0s":      func(c *config) { c.MaxTurn = 2 * time.Hour },
		"ready_ttl: must be from 1s":                           func(c *config) { c.ReadyTTL = 2 * time.Hour },
		"seen_interval: must be at most grace":                 func(c *config) { c.Grace = 20 * time.Second },
		"absent: must be":                                      func(c *config) { c.Absent = "drop" },
		"unknown_events: must be":                              func(c *config) { c.UnknownEvents = "open" },
		"purchases_per_user: must be >= 0, got -1":             func(c *config) { c.PurchasesPerUser = -1 },
		"max_events: must be":                                  func(c *config) { c.MaxEvents = 0 },
		"event_service.timeout: must be":                       func(c *config) { c.EventService.Timeout = 0 },
		"entry_url: must be an address":                        func(c *config) { c.EntryURL = "https://shop.example/enter" },
		"entry_url: must be an address with":                   func(c *config) { c.EntryURL = "javascript:alert('{token}')" },
		"clear_after: must be":                                 func(c *config) { c.ClearAfter = 0 },
		"replicas: must be":                                    func(c *config) { c.Replicas = -1 },
		"replica_wait: must be":                                func(c *config) { c.ReplicaWait = 0 },
		"shop_tokens.web: must have at least": func(c *config) {
			c.ShopTokens = map[string]setting.Secret{"app": setting.NewSecret("0123456789abcdef"), "web": setting.NewSecret("short")}
		},
		"shop_tokens.web: must not be the token of app": func(c *config) {
			same := setting.NewSecret("0123456789abcdef")
			c.ShopTokens = map[string]setting.Secret{"web": same, "app": same}
		},
		"shop_tokens.a shop: the name of a shop must be": func(c *config) {
			c.ShopTokens = map[string]setting.Secret{"a shop": setting.NewSecret("0123456789abcdef")}
		},
		"admin_tokens.eve: must have at least": func(c *config) { c.AdminTokens = map[string]setting.Secret{"eve": setting.NewSecret("short")} },
		"admin_tokens.eve: must not be the token of ann": func(c *config) {
			same := setting.NewSecret("0123456789abcdef")
			c.AdminTokens = map[string]setting.Secret{"eve": same, "ann": same}
		},
		"admin_tokens.e\x1b: the name of an operator must be": func(c *config) {
			c.AdminTokens = map[string]setting.Secret{"e\x1b": setting.NewSecret("0123456789abcdef")}
		},
		"redis.addrs: must name": func(c *config) { c.Redis = &redis.ClientConfig{DialTimeout: 1, ReadTimeout: 1, WriteTimeout: 1} },
	} {
		c := defaultConfig()
		c.EventService.URL, c.EntryURL = "https://events.example", "https://shop.example/enter?token={token}"
		change(&c)
		if err := c.Validate(); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "short")
		}
	}
	c := defaultConfig()
	require.False(t, c.EnabledByDefault())
	require.NoError(t, c.Validate())
}

func TestABrokerNeedsUsers(t *testing.T) {
	t.Parallel()
	p, public := newPlugin()
	require.ErrorContains(t, p.ValidateIn(app.Where{}), "set plugins.web.auth. There are no anonymous visitors")
	public.Auth.Header = "X-User"
	require.ErrorContains(t, p.ValidateIn(app.Where{}), "event_service.url: must be set")
	p.config.UnknownEvents = unknownRefuse
	require.NoError(t, p.ValidateIn(app.Where{}))
	p.config.Page.Logo = "/absent/logo.svg"
	require.ErrorContains(t, p.ValidateIn(app.Where{}), "page: logo: stat /absent/logo.svg", "a broker serves it")
	p.config = defaultConfig()
	p.config.Page.Logo = "/absent/logo.svg"
	p.config.Roles = []string{roleDispatcher}
	require.NoError(t, p.ValidateIn(app.Where{}), "it confirms no event, and serves no page")
}

func TestARoleNeedsItsPlugins(t *testing.T) {
	t.Parallel()
	p, _ := newPlugin()
	p.config.Roles = []string{roleDispatcher}
	require.Equal(t, []string{"redis", "deadletter", "reclaim"}, p.Needs())
	p.config.Roles = []string{roleBroker}
	require.Equal(t, []string{"redis", "deadletter", "reclaim", "token", "sse", "web"}, p.Needs())
}
