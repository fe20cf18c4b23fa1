package promotion

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/cli"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	return cli.Commands(h, cli.Env{Env: p.campaigns(), Kafka: p.kafka, Connections: p.connections, MoneyURL: p.moneyURL})
}

// campaigns is what commands and pages use.
func (p *Plugin) campaigns() campaign.Env {
	return campaign.Env{
		DeadLetters: p.dead, Plugin: payout.OutboxName, DeadLetterID: payout.DeadLetterID,
		Settings: p.commandSettings, Resources: commandResources{p}, Paused: p.acceptPaused,
	}
}

// acceptPaused says that the route which accepts payouts of a type is paused, or nothing.
func (p *Plugin) acceptPaused(ctx context.Context, of payouts.Type) string {
	t, known := promotiontype.ByName(string(of))
	if !known {
		return ""
	}
	return operate.PausedNote(ctx, p.registry, (&payout.Processor{Type: t}).AcceptRoute())
}

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations {
	of := p.campaigns()
	return operate.Operations{Reports: of.Reports(), Actions: append(of.Actions(), p.probeAction())}
}

func (p *Plugin) commandSettings() campaign.Settings {
	c := &p.config
	return campaign.Settings{CallTimeout: c.MoneyAPI.CallTimeout, Lease: c.MoneyAPI.lease(), IdempotencyTTL: c.Ledger.IdempotencyTTL,
		FeederInterval: c.Feeder.Interval, FeederGrace: c.Feeder.GracePeriod, AcceptUnannounced: c.AcceptUnannounced}
}

func (p *Plugin) connections() cli.Connections {
	return cli.Connections{KafkaBrokers: p.kafka.Config().Brokers, RedisAddrs: p.redis.Config().Addrs}
}

// Reach implements app.Reachable: commands use the simulated Money API of this process.
func (p *Plugin) Reach() map[string]any {
	if p.run.simulator == nil {
		return nil
	}
	return map[string]any{
		"plugins.promotion.money_api.url":               p.run.simulator.URL(),
		"plugins.promotion.money_api.simulator.enabled": false,
	}
}

// SendAudit implements app.SendAuditor: a record of a publish topic is a payment, and with
// accept_unannounced a record of a retry topic may be one.
func (p *Plugin) SendAudit(_ *pipeline.Registry, topic string) *app.SendAudit {
	for _, t := range promotiontype.All() {
		if topic != t.PublishTopic() && topic != t.RetryTopic() {
			continue
		}
		return &app.SendAudit{
			Register: func(r *pipeline.Registry) error {
				return commandResources{p}.Register(r, campaign.Services{Ledger: true})
			},
			Record: func(ctx context.Context, payload []byte, by app.By) error {
				payout, err := t.Decode(payload)
				if err != nil {
					return nil //nolint:nilerr // it becomes a dead letter and pays nothing
				}
				key := payouts.Key{Type: payouts.Type(t.Name), Promotion: payout.Promotion, Target: payout.Target}
				return p.run.ledger.AuditSend(ctx, key, by.Who, by.Why, topic)
			},
		}
	}
	return nil
}

// Tail implements app.Tailer for the streams of promotions on a server of their own.
func (p *Plugin) Tail(name string, oldest bool) pipeline.Source {
	ofType := func(t promotiontype.Type) bool { return strings.HasPrefix(name, t.StreamPrefix()) }
	if own := p.config.Stream.Redis; own != nil && slices.ContainsFunc(promotiontype.All(), ofType) {
		return p.redis.TailAt(*own, name, oldest)
	}
	return nil
}

type commandResources struct{ p *Plugin }

// Register names the services otherwise than those of a process that pays, because a command that is made of an
// action knows the routes, too.
func (c commandResources) Register(r *pipeline.Registry, s campaign.Services) error {
	c.p.run.use(r.Env(), r.Env().Logger)
	if s.MoneyAPI != campaign.Unused {
		r.Service("promotion.command.money", c.p.run.commandMoney(s.MoneyAPI == campaign.Optional))
	}
	if s.Ledger {
		r.Service("promotion.command.ledger", c.p.run.ledgerService(false))
	}
	if s.Streams { // last, because it may use up what is left of the wait
		own := c.p.config.Stream.Redis
		if own == nil { // the service with the shared client does not run
			shared := c.p.redis.Config().ClientConfig
			own = &shared
		}
		server := c.p.redis.Server(own, streamKeys()...)
		server.Log = r.Env().Logger
		r.Service("promotion.command.redis", c.p.run.mayBeAway(server))
		c.p.run.streamsRedis.Store(server)
		c.p.managers = c.p.newManagers(server, r.Env(), r.Env().Logger, nil)
	}
	return nil
}

func (c commandResources) Ledger() *ledger.Ledger { return c.p.run.opened.Load() }

func (c commandResources) API() money.API {
	if client := c.p.run.client.Load(); client != nil {
		return client
	}
	return nil
}

func (c commandResources) Redis() error {
	if err := c.p.run.redisAway.Load(); err != nil {
		return *err
	}
	return nil
}

func (p *Plugin) moneyURL() string {
	if s := p.run.simulator; s != nil {
		return s.URL()
	}
	return p.config.MoneyAPI.URL
}

func (c commandResources) Streams(t payouts.Type) *streams.Manager { return c.p.managers[string(t)] }

var (
	_ app.Commander    = (*Plugin)(nil)
	_ app.Tailer       = (*Plugin)(nil)
	_ operate.Operated = (*Plugin)(nil)
)
