package promotion

import (
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Config is the settings section of the plugin (plugins.promotion).
type Config struct {
	Stream   StreamConfig  `yaml:"stream"`
	Ledger   ledger.Config `yaml:"ledger"`
	MoneyAPI MoneyConfig   `yaml:"money_api"`
	Feeder   feeder.Config `yaml:"feeder"`
	Results  ResultsConfig `yaml:"results"`
	// AcceptBatch limits the records of a publish topic that are accepted with one statement.
	AcceptBatch pipeline.Batch `yaml:"accept_batch"`
	// AcceptUnannounced accepts stream entries and retry records of payouts without an accepted
	// record of a publish topic. Any program that may write to Redis or to a retry topic can then
	// cause payments. Default false: each becomes a dead letter of class unannounced.
	AcceptUnannounced bool `yaml:"accept_unannounced"`

	drainTimeout func() time.Duration // of the consumer groups; nil: not known
}

// StreamConfig is how the work is spread.
type StreamConfig struct {
	// Enabled sends fresh records to the promotion's stream. Otherwise they are paid at once, on
	// the Kafka route. Readers, reclaim, feeder and clean-up run in both cases.
	Enabled        bool `yaml:"enabled"`
	streams.Config `yaml:",inline"`
	// MaxActive is how many promotions of all types may have a stream at once. Others wait in the
	// ledger. The one that has waited longest gets the next free place. Paused promotions do not
	// count.
	MaxActive int `yaml:"max_active_promotions"`
	// Redis is a server of its own for the streams. Nil: the shared one (plugins.redis).
	Redis *redis.ClientConfig `yaml:"redis"`
}

// MoneyConfig is the Money API, or the simulation of one.
type MoneyConfig struct {
	oncehttp.Config `yaml:",inline"`
	// LeaseMargin is how much longer a payout belongs to its worker than a call may last. The lease
	// is call_timeout plus this.
	LeaseMargin time.Duration `yaml:"lease_margin"`
	// Simulator runs a simulated Money API in this process and pays there instead.
	Simulator SimulatorConfig `yaml:"simulator"`
}

// servers are those that are called, for the topology. The first one is the API.
func (c *MoneyConfig) servers() []pipeline.Endpoint {
	if c.Simulator.Enabled {
		return []pipeline.Endpoint{{Kind: pipeline.KindServer, Name: "simulated Money API"}}
	}
	return pipeline.ServersOf(c.Called(c.URL)...)
}

// SimulatorConfig is the simulated Money API inside the process.
type SimulatorConfig struct {
	Enabled bool `yaml:"enabled"`
	// AllowWithRealServers accepts it in the profile production, and together with servers on other
	// machines. Nothing is then really paid.
	AllowWithRealServers bool `yaml:"allow_with_real_servers"`

	Listen string `yaml:"listen"` // host:port; port 0 takes a free one
	// Journal is the file of executed charges. Empty: in memory only.
	Journal          string `yaml:"journal"`
	simulator.Faults `yaml:",inline"`
}

// ResultsConfig is the outcome events.
type ResultsConfig struct {
	// Enabled publishes an event per settled payout, at least once, to the Redis stream
	// campaign-promotion-results.
	Enabled bool `yaml:"enabled"`
	// Retention is how long an event stays in the stream, whether or not it was read.
	Retention time.Duration `yaml:"retention"`
	// RequiredGroups are the consumer groups of the services that read the events. When all of them
	// exist, an event that every group has acknowledged is removed. Empty: an event stays for
	// Retention.
	RequiredGroups []string `yaml:"required_groups"`
}

// DefaultConfig returns the defaults. The ledger's DSN and the Money API's URL have none.
func DefaultConfig() Config {
	return Config{
		Stream:   StreamConfig{Config: streams.DefaultConfig(), MaxActive: 1000},
		Ledger:   ledger.DefaultConfig(),
		MoneyAPI: MoneyConfig{Config: oncehttp.DefaultConfig(), LeaseMargin: 5 * time.Second, Simulator: SimulatorConfig{Listen: "127.0.0.1:0"}},
		Feeder:   feeder.DefaultConfig(),
		Results:  ResultsConfig{Retention: 24 * time.Hour},

		AcceptBatch: pipeline.DefaultBatch(),
	}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	var p setting.Problems
	p.Under("stream", c.Stream.Validate())
	p.Under("ledger", c.Ledger.Validate())
	p.Under("money_api", c.MoneyAPI.Validate())
	p.Under("feeder", c.Feeder.Validate())
	p.Under("accept_batch", c.AcceptBatch.Validate())
	if c.Stream.Redis != nil {
		p.Under("stream.redis", c.Stream.Redis.Validate())
	}
	c.fit(&p)
	p.Positive("results.retention", c.Results.Retention)
	p.Groups("results.required_groups", c.Results.RequiredGroups)
	p.Check(c.Stream.MaxActive >= 1, "stream.max_active_promotions", "must be >= 1, got %d", c.Stream.MaxActive)
	return p.Err()
}

// fit reports the settings that are shorter than a lease. A worker may hold its message for a whole
// lease, and no other instance may claim it before.
func (c *Config) fit(p *setting.Problems) {
	lease := c.MoneyAPI.lease()
	fits := func(d time.Duration) bool { return lease <= 0 || d <= 0 || d > lease }
	longer := func(path string, d time.Duration) {
		p.Check(fits(d), path, "must be longer than a lease (money_api.call_timeout + money_api.lease_margin = %s), got %s", lease, d)
	}
	longer("stream.min_idle", c.Stream.MinIdle)
	longer("stream.longest_hold", c.Stream.LongestHold)
	longer("ledger.idempotency_ttl", c.Ledger.IdempotencyTTL)
	if c.drainTimeout != nil {
		drain := c.drainTimeout()
		p.Check(fits(drain), "money_api.call_timeout", "with lease_margin it makes a lease of %s, which must be shorter than plugins.kafka.drain_timeout (%s)",
			lease, drain)
	}
}

// longestHold is how long a handler may have a message before it counts as stuck. It is twice the
// time of a begin, a lease and a settlement, because the ledger may be slow.
func (c *Config) longestHold() time.Duration {
	return max(minLongestHold, 2*(handlerTimeout+c.MoneyAPI.lease()+payout.SettleTimeout))
}

// Validate reports every mistake at once. With the simulator the URL is not used.
func (c *MoneyConfig) Validate() error {
	var p setting.Problems
	api := c.Config
	if c.Simulator.Enabled {
		api.URL = "http://127.0.0.1"
	}
	p = append(p, api.Validate())
	p.Under("simulator", c.Simulator.Validate())
	p.Positive("lease_margin", c.LeaseMargin)
	return p.Err()
}

func (c *MoneyConfig) lease() time.Duration { return c.CallTimeout + c.LeaseMargin }

// ValidateIn refuses a simulated Money API where real work would be lost in it (app.Placed).
func (p *Plugin) ValidateIn(where app.Where) error {
	sim := p.config.MoneyAPI.Simulator
	if !sim.Enabled || sim.AllowWithRealServers || where.Environment == "embedded" {
		return nil
	}
	var real string
	switch {
	case where.Profile == "production":
		real = "in the profile production"
	case !p.serversHere():
		real = "together with servers on other machines"
	default:
		return nil
	}
	var wrong setting.Problems
	wrong.Check(false, "money_api.simulator.enabled",
		"must be false %s: payouts would be recorded as paid and nothing would be paid; or set allow_with_real_servers: true in this section", real)
	return wrong.Err()
}

// Simulates implements app.Simulating: nothing is paid.
func (p *Plugin) Simulates() bool { return p.config.MoneyAPI.Simulator.Enabled }

// serversHere reports whether Kafka, Redis and the ledger are on this machine.
func (p *Plugin) serversHere() bool {
	own := p.config.Stream.Redis
	return setting.Loopback(p.kafka.Config().Brokers...) && setting.Loopback(p.redis.Config().Addrs...) && (own == nil || setting.Loopback(own.Addrs...)) &&
		sqldb.OnThisMachine(p.config.Ledger.DSN.Reveal())
}
