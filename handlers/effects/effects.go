// Package effects makes kinds of side effects of settings, so that a call of an HTTP API that must take effect
// once needs no Go: where the key and the request stand in a record, what the API does with a second request,
// and what its answers prove. It also accepts effects of any kind over HTTP.
package effects

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
	"github.com/millrace-io/millrace/plugins/web"
)

// Plugin is the plugin "effects". Build it with New.
type Plugin struct {
	config Config
	once   *once.Plugin
	web    *web.Plugin
}

// New returns the plugin with default settings, which have no kind. It opens nothing.
func New(o *once.Plugin, server *web.Plugin) *Plugin {
	p := &Plugin{config: defaultConfig(), once: o, web: server}
	o.UsedWhen(func() bool { return len(p.config.Kinds) > 0 })
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "effects" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() (names []string) {
	for _, k := range p.config.Kinds {
		if k != nil { // otherwise Validate says so
			names = append(names, k.Effects.Needs(p.once)...)
		}
	}
	if len(p.config.HTTP.Kinds) > 0 {
		names = append(names, p.once.Name(), p.web.Name())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ValidateIn checks the names of kinds against those of the binary (app.Placed).
func (p *Plugin) ValidateIn(app.Where) error { return p.config.fits(p.once.Kinds()) }

// Register implements pipeline.Plugin.
func (p *Plugin) Register(r *pipeline.Registry) error {
	for _, name := range slices.Sorted(maps.Keys(p.config.Kinds)) {
		if err := p.register(r, name, p.config.Kinds[name]); err != nil {
			return err
		}
	}
	if len(p.config.HTTP.Kinds) > 0 {
		log := r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
		e := newEntrance(p.config.HTTP, p.once, r.Env().Instance, log)
		p.web.Handle("POST /once/{kind}", http.HandlerFunc(e.accept), web.ContinueTrace())
		p.web.Handle("GET /once/{kind}/{key}", http.HandlerFunc(e.show), web.ContinueTrace())
	}
	return nil
}

// register makes a kind with a client of its own.
func (p *Plugin) register(r *pipeline.Registry, name string, k *Kind) error {
	api, config := k.api(), k.effects(name)
	client := oncehttp.New(&api, k.mapping(name))
	kind := once.Kind[record]{
		Name: name, Repeat: repeats[k.Repeat], Decode: decode, Key: func(r record) (once.Key, error) { return k.keyOf(name, r) }, Request: k.requestOf, NotBefore: k.notBefore, Gate: client,
		Idempotency: k.idempotency(name), Names: k.Names,
		Call: func(ctx context.Context, a once.Attempt[record]) once.Answer {
			return oncehttp.Post(ctx, client, k.Request.Path, a)
		},
	}
	if k.Sum != "" {
		kind.Sum = func(r record) (int64, bool) {
			sum, err := k.sumOf(r)
			return sum, err == nil
		}
	}
	if k.Lookup != nil {
		kind.Lookup = func(ctx context.Context, l once.Lookup) once.Answer {
			return oncehttp.Find(ctx, client, k.Lookup.Path, l)
		}
	}
	if err := once.New(p.once, kind, &config).Register(r); err != nil {
		return err
	}
	client.Register(r)
	return nil
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Dependent    = (*Plugin)(nil)
	_ app.Placed            = (*Plugin)(nil)
)
