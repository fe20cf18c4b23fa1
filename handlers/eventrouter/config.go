package eventrouter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/gateway"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
)

// The roles of a process.
const (
	roleRouter  = "router"  // reads the shards, and writes logs, states and feeds
	roleGateway = "gateway" // sends the events to watchers
)

// config is the section plugins.eventrouter.
type config struct {
	// Roles are those of this process: router, gateway, or both.
	Roles []string `yaml:"roles"`
	// Domains are prefixes of plugins.redis.domains. Each has its settings there.
	Domains []string `yaml:"domains"`

	event.Stages `yaml:",inline"`
	Logs         joblog.Config  `yaml:",inline"` // of logs and states
	Gateway      gateway.Config `yaml:",inline"`

	// MaxDeliveries limits the deliveries of an event whose log or state can't be written because
	// of what the keys of its job contain. The event then becomes a dead letter. 0: no limit.
	MaxDeliveries int `yaml:"max_deliveries"`

	// Redis is the server of the logs, states and feeds. Absent: that of plugins.redis.
	Redis *redis.ClientConfig `yaml:"redis"`
}

// defaultConfig returns the settings of the README.
func defaultConfig() config {
	return config{
		Roles: []string{roleRouter, roleGateway}, Domains: []string{"scan:events", "chat:events"},
		Stages: event.DefaultStages(), Logs: joblog.DefaultConfig(), Gateway: gateway.DefaultConfig(),
		MaxDeliveries: defaultMaxDeliveries,
	}
}

// EnabledByDefault returns false: most processes have no jobs to watch.
func (*config) EnabledByDefault() bool { return false }

// defaultMaxDeliveries is reached within seconds, before the entry has to wait for min_idle.
const defaultMaxDeliveries = 5

func (c *config) has(role string) bool { return slices.Contains(c.Roles, role) }

// maxStageBytes is the limit of a stage in an event.
const maxStageBytes = 128

// Validate reports all errors at once.
func (c *config) Validate() error {
	var p setting.Problems
	p.Roles(c.Roles, roleRouter, roleGateway)
	p.Check(len(c.Domains) > 0, "domains", "must have at least one prefix of plugins.redis.domains")
	names := map[string]string{}
	for i, prefix := range c.Domains {
		name, _, _ := strings.Cut(prefix, ":")
		at := fmt.Sprintf("domains[%d]", i)
		p.Check(strings.TrimSpace(name) != "" && !strings.ContainsAny(name, "{}/ "), at, "must begin with the name of the domain and a colon, as in scan:events, got %q", prefix)
		p.Check(names[name] == "", at, "domain %s is that of %q already", name, names[name])
		names[name] = prefix
	}
	for name, stages := range map[string][]string{"transient_stages": c.Transient, "terminal_stages": c.Terminal} {
		for i, stage := range stages {
			p.Check(stage != "" && len(stage) <= maxStageBytes && !strings.Contains(stage, "\n"), fmt.Sprintf("%s[%d]", name, i), "must be a stage of at most %d bytes, got %q", maxStageBytes, stage)
		}
	}
	p.Check(len(c.Terminal) > 0, "terminal_stages", "must have a stage: without an end the watchers wait until max_watch")
	for i, stage := range c.Terminal {
		p.Check(!slices.Contains(c.Transient, stage), fmt.Sprintf("terminal_stages[%d]", i), "%q must not be in transient_stages", stage)
	}
	p.Check(c.MaxDeliveries >= 0, "max_deliveries", "must be >= 0, got %d", c.MaxDeliveries)
	if c.Redis != nil {
		p.Under("redis", c.Redis.Validate())
	}
	return errors.Join(p.Err(), c.Logs.Validate(), c.Gateway.Validate())
}

// ValidateIn checks the domains against those of plugins.redis (app.Placed).
func (p *Plugin) ValidateIn(app.Where) error {
	var wrong setting.Problems
	for i, prefix := range p.config.Domains {
		at := fmt.Sprintf("domains[%d]", i)
		domain, ok := p.domain(prefix)
		wrong.Check(ok, at, "%q is not in plugins.redis.domains: add {prefix: %q, shards: 8, group: eventrouter, fields: true, exclusive: true}", prefix, prefix)
		if ok && p.config.has(roleRouter) {
			wrong.Check(domain.Exclusive, at, "%q must have exclusive: true in plugins.redis.domains: several readers of a shard change the order of events", prefix)
			wrong.Check(domain.Fields, at, "%q must have fields: true in plugins.redis.domains: its entries have no field message", prefix)
		}
	}
	return wrong.Err()
}

// unread returns the domains of plugins.redis that look like those of this plugin, and that it does
// not have: flat fields, exclusive shards, and the same group. Another plugin has another group. The
// router of another process may read them.
func (p *Plugin) unread() (list []redis.DomainConfig) {
	groups := map[string]bool{}
	for _, prefix := range p.config.Domains {
		if d, ok := p.domain(prefix); ok {
			groups[d.Group] = true
		}
	}
	for _, d := range p.redis.Config().Domains {
		if d.Fields && d.Exclusive && groups[d.Group] && !slices.Contains(p.config.Domains, d.Prefix) {
			list = append(list, d)
		}
	}
	return list
}

// domain returns the domain of plugins.redis with that prefix.
func (p *Plugin) domain(prefix string) (redis.DomainConfig, bool) {
	all := p.redis.Config().Domains
	i := slices.IndexFunc(all, func(d redis.DomainConfig) bool { return d.Prefix == prefix })
	if i < 0 {
		return redis.DomainConfig{}, false
	}
	return all[i], true
}

// domainName is the name of a domain in addresses, keys and labels.
func domainName(prefix string) string {
	name, _, _ := strings.Cut(prefix, ":")
	return name
}
