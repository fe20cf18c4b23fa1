package eventrouter

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/cli"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/gateway"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/pages"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/router"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Plugin is the plugin "eventrouter". Build it with New.
type Plugin struct {
	config      config
	redis       *redis.Plugin
	deadLetters *deadletter.Plugin
	tokens      *token.Plugin
	web         *web.Plugin
	sse         *sse.Plugin
	// Servers of the logs and of the shards: those of this process, or in a command its own.
	logs, shards *redis.Server
}

// New returns the plugin with default settings. It opens nothing.
func New(shared *redis.Plugin, deadLetters *deadletter.Plugin, tokens *token.Plugin, streams *sse.Plugin, server *web.Plugin) *Plugin {
	return &Plugin{config: defaultConfig(), redis: shared, deadLetters: deadLetters, tokens: tokens, sse: streams, web: server}
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "eventrouter" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string {
	needs := []string{p.redis.Name()}
	if p.config.has(roleRouter) {
		needs = append(needs, p.deadLetters.Name(), reclaim.Name)
	}
	if p.config.has(roleGateway) {
		needs = append(needs, p.tokens.Name(), p.sse.Name(), p.web.Name())
	}
	return needs
}

// Register implements pipeline.Plugin.
func (p *Plugin) Register(r *pipeline.Registry) error {
	r.ErrorClasses(event.Classes()...)
	server := p.redis.Server(p.config.Redis, p.keys()...)
	server.Log = r.Env().Logger
	r.Service("eventrouter.redis", server)
	p.logs, p.shards = server, p.redis.Server(nil)
	log := joblog.New(server, p.config.Logs, p.config.Stages)
	if p.config.has(roleRouter) {
		p.registerRouter(r, log)
	}
	if p.config.has(roleGateway) {
		p.registerGateway(r, server, log)
	}
	p.endpoints(r)
	r.Offer(p) // it is an operate.Auditor, has operations, and contributes to the console
	return nil
}

// endpoints adds what the roles write and follow outside of the routes, for the command topology.
func (p *Plugin) endpoints(r *pipeline.Registry) {
	for _, prefix := range p.config.Domains {
		name := domainName(prefix)
		domain, _ := p.domain(prefix)
		feed := pipeline.Endpoint{Kind: poll.Kind, Name: fmt.Sprintf("%s<0…%d>", joblog.FeedPrefix(name), max(0, domain.Shards-1))}
		if p.config.has(roleRouter) {
			r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: kindHash, Name: joblog.LogKey(name, "<job_id>")})
			r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: kindString, Name: joblog.StateKey(name, "<job_id>")})
			r.Endpoint(pipeline.UseWrites, feed)
		}
		if p.config.has(roleGateway) {
			r.Endpoint(pipeline.UseFollows, feed)
		}
	}
}

// The kinds of endpoints that are no streams.
const (
	kindHash   = "redis-hash"
	kindString = "redis-string"
)

// keys returns one key of each kind, for the check of the rights.
func (p *Plugin) keys() []string {
	var keys []string
	for _, prefix := range p.config.Domains {
		name := domainName(prefix)
		keys = append(keys, joblog.LogKey(name, "millrace-probe"), joblog.StateKey(name, "millrace-probe"), joblog.FeedPrefix(name)+"probe")
	}
	return keys
}

func (p *Plugin) registerRouter(r *pipeline.Registry, log *joblog.Log) {
	r.Health(p.Name()+".shards", newShardCheck(p.redis.Server(nil), p.settings().Domains, r.Env().Logger).check)
	for _, d := range p.unread() {
		r.Env().Logger.Warn("the router of this process does not read a domain of its group: unless another process does, add the domain to plugins.eventrouter.domains",
			slog.String(logs.Domain, d.Prefix), slog.String("group", d.Group))
	}
	metrics := router.NewMetrics()
	r.Collect(metrics.Collectors()...)
	for _, prefix := range p.config.Domains {
		events := &router.Router{Log: log, Stages: p.config.Stages, Owned: redis.Owned, Metrics: metrics, MaxDeliveries: p.config.MaxDeliveries, Logger: r.Env().Logger}
		domain, _ := p.domain(prefix) // a missing one is an error of the settings, and of the route
		metrics.Domain(domainName(prefix), domain.Shards)
		r.Route(pipeline.Route{
			Name: "eventrouter." + domainName(prefix), From: p.redis.Domain(prefix).Source(),
			HandleBatch: events.Handle, Flow: pipeline.Flow{Gate: events.Gate}, Batch: pipeline.Batch{PerSource: true},
			Policy: pipeline.Policy{DeadLetter: p.deadLetters.StreamSink(prefix + ":dead")},
		})
	}
}

func (p *Plugin) registerGateway(r *pipeline.Registry, server *redis.Server, log *joblog.Log) {
	shards := map[string]int{}
	for _, d := range p.settings().Domains {
		shards[domainName(d.Prefix)] = d.Shards
	}
	g := gateway.New(gateway.Options{
		Config: p.config.Gateway, Stages: p.config.Stages, Shards: shards, Server: server, Log: log,
		Hub: p.sse.Hub("jobs"), Tokens: p.tokens, Web: p.web, Logger: r.Env().Logger,
	})
	g.Register(r)
	r.Service("eventrouter.gateway", g)
	page := pages.Watch()
	p.web.Handle("GET /jobs/{domain}/{job}/watch", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		job := pages.Job{Domain: r.PathValue("domain"), JobID: r.PathValue("job"), Silence: p.sse.Silence()}
		if _, ok := shards[job.Domain]; !ok || !event.ValidJobID(job.JobID) {
			web.Refuse(w, r, web.Refusal{Status: http.StatusNotFound, Word: "unknown", Message: "there is no such job"})
			return
		}
		p.web.Page(w, r, page, job)
	}))
}

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	return []*cobra.Command{cli.Command(h, p.commandDeps())}
}

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations { return cli.Operations(p.commandDeps()) }

func (p *Plugin) commandDeps() cli.Deps {
	return cli.Deps{Settings: p.settings, Register: p.registerCommand, Jobs: p.jobs, Sign: p.sign, Redis: p.server, Addr: p.web.Addr, WebURL: p.webURL}
}

// jobs are those on the servers of this process.
func (p *Plugin) jobs() cli.Jobs {
	return cli.Jobs{Settings: p.settings(), OfLogs: p.logs, OfShards: p.shards}
}

func (p *Plugin) settings() cli.Settings {
	s := cli.Settings{Logs: p.config.Logs, Stages: p.config.Stages, MaxWatch: p.config.Gateway.MaxWatch}
	for _, prefix := range p.config.Domains {
		if d, ok := p.domain(prefix); ok {
			s.Domains = append(s.Domains, d)
		}
	}
	return s
}

// errNoKey says that only the process of the gateway can sign.
var errNoKey = app.Usage("plugins.token.keys has no key: a token of this command would be valid nowhere")

func (p *Plugin) sign(jobs []string, subject string, expires time.Time) (string, error) {
	if len(p.tokens.Config().Keys) == 0 {
		return "", errNoKey
	}
	return p.tokens.Sign(token.Claims{Audience: gateway.Audience, Subject: subject, Job: jobs, Expires: expires})
}

// webURL returns the address of the gateway in these settings.
func (p *Plugin) webURL() string {
	c := p.web.Config()
	scheme := "http://"
	if c.TLS.CertFile != "" {
		scheme = "https://"
	}
	return scheme + c.Listen
}

// server returns the server of the shards.
func (p *Plugin) server() redis.ClientConfig { return p.redis.Config().ClientConfig }

// registerCommand adds servers with clients of their own: a command does not use the name of a running
// instance.
func (p *Plugin) registerCommand(r *pipeline.Registry) error {
	ofLogs, ofShards := p.server(), p.server()
	if p.config.Redis != nil {
		ofLogs = *p.config.Redis
	}
	p.logs, p.shards = p.redis.Server(&ofLogs), p.redis.Server(&ofShards)
	p.logs.Log, p.shards.Log = r.Env().Logger, r.Env().Logger
	r.Service("eventrouter.logs", p.logs)
	r.Service("eventrouter.shards", p.shards)
	return nil
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Dependent    = (*Plugin)(nil)
	_ app.Commander         = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
)
