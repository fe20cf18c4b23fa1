package waitingroom

import (
	"fmt"
	"html/template"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/cli"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/dispatcher"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/shop"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/pages"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/reach"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Plugin is the plugin "waitingroom". Build it with New.
type Plugin struct {
	config      config
	redis       *redis.Plugin
	deadLetters *deadletter.Plugin
	tokens      *token.Plugin
	sse         *sse.Plugin
	web         *web.Plugin
	page        *template.Template
	looks       *pages.Looks // of a broker
}

// New returns the plugin with default settings. It opens nothing.
func New(shared *redis.Plugin, deadLetters *deadletter.Plugin, tokens *token.Plugin, streams *sse.Plugin, server *web.Plugin) *Plugin {
	return &Plugin{config: defaultConfig(), redis: shared, deadLetters: deadLetters, tokens: tokens, sse: streams, web: server, page: pages.Waiting()}
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "waitingroom" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string {
	needs := []string{p.redis.Name(), p.deadLetters.Name(), reclaim.Name}
	if p.config.has(roleBroker) {
		needs = append(needs, p.tokens.Name(), p.sse.Name(), p.web.Name())
	}
	return needs
}

// deadStream has the dead letters of both roles.
const deadStream = "ENTRY:dead"

// Register implements pipeline.Plugin.
func (p *Plugin) Register(r *pipeline.Registry) error {
	log := r.Env().Logger
	server := p.redis.Server(p.config.Redis, probeKeys()...)
	server.Log, server.Commands = log, p.commands()
	r.Service("waitingroom.redis", server)
	options := p.config.rooms()
	options.Log, options.Instance = log, r.Env().Instance
	rooms := room.New(server, options)
	r.Offer(audits{rooms})
	r.Offer(operators{Plugin: p, rooms: rooms, server: server, rates: &rates{}})
	events, err := eventservice.New(eventservice.Options{
		Config: p.config.EventService, Rooms: rooms, Log: log, Tracer: r.Env().Tracer,
		Confirm: p.config.UnknownEvents == unknownConfirm, Fetch: p.config.has(roleDispatcher),
	})
	if err != nil {
		return err
	}
	r.Service("waitingroom.eventservice", events)
	if address := p.config.EventService.URL; address != "" {
		reach.Servers{Name: p.Name(), URL: address, Client: p.config.EventService.Config}.Register(r)
	}
	p.endpoints(r)
	series := topevents.New()
	r.Collect(append(events.Collectors(), series.Collectors()...)...)
	dead := p.deadLetters.StreamSink(deadStream)
	if p.config.has(roleDispatcher) {
		d := dispatcher.New(dispatcher.Options{Config: p.config.Dispatcher, Rooms: rooms, Redis: p.redis, Server: server, DeadLetter: dead, Labels: series})
		d.Register(r)
		r.Offer(reclaim.Shards(d.Family()))
	}
	if p.config.has(roleBroker) {
		b := broker.New(broker.Options{
			Config: p.config.Broker, SeenInterval: p.config.SeenInterval, Rooms: rooms, Events: events, Redis: p.redis, Server: server,
			Hub: p.sse.Hub("room"), Tokens: p.tokens, Web: p.web, DeadLetter: dead, Labels: series,
		})
		b.Register(r)
		r.Offer(reclaim.Shards(b.Family()))
		shop.New(rooms, p.tokens, series, p.config.ShopTokens, log).Register(r, p.web)
		if p.looks, err = pages.Open(p.config.Page); err != nil {
			return fmt.Errorf("plugins.waitingroom.page: %w", err)
		}
		p.web.Handle("GET /rooms/{id}", http.HandlerFunc(p.servePage))
		p.web.Handle("GET /rooms/{id}/logo", http.HandlerFunc(p.serveLogo))
	}
	if len(p.config.AdminTokens) > 0 {
		r.HTTP(admin.Pattern, admin.Handler(rooms, p.config.AdminTokens, log))
	}
	return nil
}

// probeKeys returns one key of each kind, for the check of the rights.
func probeKeys() []string {
	const event = "millrace-probe"
	return []string{
		"WAITING:{" + event + "}", "ROOM:{" + event + "}", room.EntryStream(event), room.DispatchStream(event),
		redis.MetaKey(room.DispatchStream(event)),
	}
}

// commands returns those of the rooms that plugins.redis does not need.
func (p *Plugin) commands() []string {
	list := []string{
		"zadd", "zrem", "zcard", "zrank", "zrange", "zrangebyscore", "zscore", "zmscore", "sadd", "srem", "scard", "smembers",
		"hexists", "hincrby", "mset", "unlink", "rename",
	}
	if p.config.Replicas > 0 {
		list = append(list, "wait")
	}
	return list
}

// servePage answers with the page of a user who waits.
func (p *Plugin) servePage(w http.ResponseWriter, r *http.Request) {
	event := r.PathValue("id")
	if !room.ValidEvent(event) {
		web.Refuse(w, r, web.Refusal{Status: http.StatusNotFound, Word: "unknown_event", Message: "there is no such event"})
		return
	}
	user, _ := web.UserOf(r.Context())
	data := pages.Room{
		Event: event, EntryURL: p.config.EntryURL, Grace: p.config.Grace, Releases: p.config.Absent == absentRelease,
		User: user.ID, Silence: p.sse.Silence(),
	}
	images := p.looks.Dress(&data, r.Header.Get("Accept-Language"))
	w.Header().Add("Vary", "Accept-Language")
	p.web.Page(w, r, p.page, data, images...)
}

// serveLogo answers with the logo of an event that is a file. The headers of the server forbid that one which
// is opened by itself runs a script.
func (p *Plugin) serveLogo(w http.ResponseWriter, r *http.Request) {
	logo, found := p.looks.Logo(r.PathValue("id"))
	if !found {
		web.Refuse(w, r, web.Refusal{Status: http.StatusNotFound, Word: "not_found", Message: "the page of the event has no logo here"})
		return
	}
	w.Header().Set("Content-Type", logo.Type)
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(logo.Data) // a client that is gone needs no answer
}

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	return []*cobra.Command{cli.Command(h, cli.Deps{Rooms: p.rooms, Redis: p.server, Addr: p.web.Addr, Keys: p.keys})}
}

// server returns the settings of the server of the rooms.
func (p *Plugin) server() redis.ClientConfig {
	if p.config.Redis != nil {
		return *p.config.Redis
	}
	return p.redis.Config().ClientConfig
}

// keys returns the keys of the tokens of this process.
func (p *Plugin) keys() []token.KeyConfig { return p.tokens.Config().Keys }

// rooms returns the rooms for a command, with a client of its own: a command does not use the name
// of a running instance.
func (p *Plugin) rooms() (*room.Store, *redis.Server) {
	own := p.server()
	server := p.redis.Server(&own)
	return room.New(server, p.config.rooms()), server
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Dependent    = (*Plugin)(nil)
	_ app.Commander         = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
)
