package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Registry collects what plugins bring. It is filled during Register and read-only afterwards.
// It is not safe for concurrent use while it is filled.
type Registry struct {
	env        Env
	plugin     string // whose Register runs
	routes     []Route
	services   []NamedService
	handlers   map[string]http.Handler
	endpoints  []PluginEndpoint
	checks     []HealthCheck
	collectors []prometheus.Collector
	classes    []ErrorClass
	offers     []any

	middlewares []addedMiddleware
	errs        []error
	names       map[string]string // kind and name → plugin
}

// Env is what every plugin may use of the process it runs in.
type Env struct {
	// Instance is the unique name of this instance: hostname-pid unless configured.
	Instance string
	// InstanceConfigured reports whether the name comes from the settings, and so survives a restart.
	InstanceConfigured bool
	// Environment is where the servers are: external, or the name of an environment inside the process. Empty: not known.
	Environment string
	// Version is that of the binary, as the command version shows it. Empty: not known.
	Version string
	// Logger is never nil.
	Logger *slog.Logger
	// LogLevel is the level of Logger, which may be changed at any time. Nil: it is not known, and stays as it is.
	LogLevel *slog.LevelVar
	// Drain ends the process as SIGTERM does, and says why in its log. It returns at once. Nil: it can't be ended from
	// within, as a command or a demo.
	Drain func(why error)
	// Tracer provides tracers; never nil (a no-op without a collector).
	Tracer trace.TracerProvider
	// Schemas says what a service does with the schema of a store before it uses the store.
	Schemas migration.Policy
	// Disabled are the plugins of the binary that the settings disable. They are not registered, and
	// their settings are not validated, so that nothing of them may be started.
	Disabled []string
	// StartTimeout bounds the start of services that a command needs only at times. Zero: no limit.
	StartTimeout time.Duration
}

// NamedService is a registered service with its name.
type NamedService struct {
	Name   string
	Plugin string // the plugin that registered it
	Service
}

// HealthCheck is a named readiness check. Check returns nil when work that is due makes progress.
type HealthCheck struct {
	Name  string
	Check func(context.Context) error
	// Own: only a fault of this instance fails the check. A server that all instances have lost
	// does not.
	Own bool
}

// NewRegistry registers the plugins in order and returns every mistake at once.
func NewRegistry(env Env, plugins ...Plugin) (*Registry, error) {
	r := &Registry{env: env, handlers: map[string]http.Handler{}, names: map[string]string{}}
	if r.env.Logger == nil {
		r.env.Logger = slog.New(slog.DiscardHandler)
	}
	if r.env.Tracer == nil {
		r.env.Tracer = noopTracer()
	}
	r.plugin = "pipeline"
	r.ErrorClasses(ownClasses()...)
	for _, p := range plugins {
		r.plugin = p.Name()
		if !nameShape.MatchString(p.Name()) {
			r.fail("plugin name must be lower-case letters, digits, - or _, got %q", p.Name())
		}
		r.claim("plugin", p.Name())
		if err := p.Register(r); err != nil {
			r.errs = append(r.errs, fmt.Errorf("plugin %s: %w", p.Name(), err))
		}
	}
	r.placeMiddlewares()
	r.plugin = ""
	r.checkGroups()
	r.checkRetries()
	return r, errors.Join(r.errs...)
}

var (
	nameShape  = regexp.MustCompile(`^[a-z][a-z0-9_-]*$`)
	routeShape = regexp.MustCompile(`^[a-z0-9]+([._-]+[a-z0-9]+)*$`)
)

func (r *Registry) fail(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("plugin %s: "+format, append([]any{r.plugin}, args...)...))
}

func (r *Registry) claim(kind, name string) {
	key := kind + " " + name
	if other, taken := r.names[key]; taken {
		r.fail("%s %q is already registered by plugin %s", kind, name, other)
		return
	}
	r.names[key] = r.plugin
}

// Offer makes v available to the plugins that use values of its type, such as a deadletter.ReplayedBy
// or a reclaim.Target. It has no effect on another plugin by itself.
func (r *Registry) Offer(v any) { r.offers = append(r.offers, v) }

// Offers returns what all plugins have offered of a type, in the order of the plugins. Call it when
// services start, or later: during Register the plugins that follow have offered nothing yet.
func Offers[T any](r *Registry) []T {
	var list []T
	for _, v := range r.offers {
		if is, ok := v.(T); ok {
			list = append(list, is)
		}
	}
	return list
}

// Env returns what the process offers to plugins.
func (r *Registry) Env() Env { return r.env }

// Route adds a route, and the route of its retry topic if Policy.Retry.From is set. NewRegistry
// returns its mistakes.
func (r *Registry) Route(route Route) {
	r.claim("route", route.Name)
	if !routeShape.MatchString(route.Name) {
		r.fail("route name must be lower-case letters and digits, with . - or _ between them, got %q", route.Name)
	}
	if route.From == nil {
		r.fail("route %s: From is nil", route.Name)
	}
	switch {
	case route.Handle == nil && route.HandleBatch == nil:
		r.fail("route %s: Handle and HandleBatch are nil", route.Name)
	case route.Handle != nil && route.HandleBatch != nil:
		r.fail("route %s: Handle and HandleBatch are set: set one of them", route.Name)
	}
	if err := route.Batch.withDefaults().Validate(); err != nil {
		r.fail("route %s: %w", route.Name, setting.FieldErrorsUnder("batch", err))
	}
	if route.Policy.DeadLetter == nil {
		r.fail("route %s: Policy.DeadLetter is nil: set a sink for messages that can never be handled, or pipeline.Drop to lose them", route.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(route.Outputs)) {
		if !routeShape.MatchString(name) {
			r.fail("route %s: the name of an output must be lower-case letters and digits, with . - or _ between them, got %q", route.Name, name)
		}
		if route.Outputs[name] == nil {
			r.fail("route %s: Outputs[%q] is nil: set its sink", route.Name, name)
		}
	}
	retry := &route.Policy.Retry
	if retry.To == nil && (retry.TakesReplays || retry.From != nil) {
		r.fail("route %s: Policy.Retry has From or TakesReplays, and no retry topic: set Retry.To", route.Name)
	}
	from := retry.From
	retry.From, retry.TakesReplays = nil, retry.TakesReplays || from != nil
	route.plugin = r.plugin
	r.routes = append(r.routes, route)
	if from != nil {
		route.retryOf = route.Name
		route.Name, route.From = route.Name+retrySuffix, from
		r.claim("route", route.Name)
		r.routes = append(r.routes, route)
	}
}

// retrySuffix ends the name of the route that Retry.From adds.
const retrySuffix = ".retry"

// checkGroups reports routes that share a consumer group, because each message would come to only one of them.
func (r *Registry) checkGroups() {
	readers := map[Endpoint]string{}
	for _, route := range r.routes {
		if route.From == nil {
			continue
		}
		at := route.From.Describe()
		if other, shared := readers[at]; shared && at.Group != "" {
			r.errs = append(r.errs, fmt.Errorf("routes %s and %s read %s with one consumer group, so each message would come to only one of them: give each its own group, or handle both in one route", other, route.Name, at))
			continue
		}
		readers[at] = route.Name
	}
}

// checkRetries reports retry topics that no route reads, or more than one, or whose transport does
// not delay. Without a reader, failed messages would be lost. Several readers would each handle and
// count a message. Without a delay, a message would spend all its retries within milliseconds.
func (r *Registry) checkRetries() {
	type place struct{ kind, name string } // without the group: a sink has none
	readers, sources := map[place][]string{}, map[place]Source{}
	for _, route := range r.routes {
		if route.From != nil {
			at := route.From.Describe()
			topic := place{at.Kind, at.Name}
			readers[topic], sources[topic] = append(readers[topic], route.Name), route.From
		}
	}
	for _, route := range r.routes {
		to := route.Policy.Retry.To
		if to == nil {
			continue
		}
		at := to.Describe()
		topic := place{at.Kind, at.Name}
		switch names := readers[topic]; {
		case len(names) > 1:
			r.errs = append(r.errs, fmt.Errorf("routes %s read the retry topic %s: one route must read it, because each would run its messages and count their attempts", strings.Join(names, ", "), at))
			readers[topic] = names[:1] // reported once
		case len(names) == 0 && !route.Policy.Retry.ReadElsewhere:
			r.errs = append(r.errs, fmt.Errorf("route %s: no route reads its retry topic %s: set Retry.From to read it, or Retry.ReadElsewhere", route.Name, at))
		}
		err := delays(to)
		if from := sources[topic]; err == nil && from != nil {
			err = delays(from)
		}
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("route %s: its retry topic %s keeps no delay: %w: use a topic of a transport that delays, such as kafka or redis", route.Name, at, err))
		}
	}
}

// Service adds a service. Services start in the order they were added and stop in the reverse
// order.
func (r *Registry) Service(name string, s Service) {
	r.claim("service", name)
	r.services = append(r.services, NamedService{Name: name, Plugin: r.plugin, Service: s})
}

// HTTP adds a handler to the operations server, at a pattern of http.ServeMux.
func (r *Registry) HTTP(pattern string, h http.Handler) {
	r.claim("http", pattern)
	r.handlers[pattern] = h
	r.Endpoint(UseOperations, Endpoint{Kind: KindHTTP, Name: pattern})
}

// Endpoint adds endpoints that the plugin uses outside of its routes. The command topology shows
// them. A Kafka topic is checked and created like the topics of routes, unless its name is a pattern,
// which has a part in angle brackets such as <job_id>. One that the plugin uses twice is one.
func (r *Registry) Endpoint(use string, all ...Endpoint) {
	for _, e := range all {
		if one := (PluginEndpoint{Plugin: r.plugin, Use: use, Endpoint: e}); !slices.Contains(r.endpoints, one) {
			r.endpoints = append(r.endpoints, one)
		}
	}
}

// Health adds a readiness check.
func (r *Registry) Health(name string, check func(context.Context) error) {
	r.claim("health", name)
	r.checks = append(r.checks, HealthCheck{Name: name, Check: check})
}

// HealthOwn adds a readiness check that only a fault of this instance fails. A load balancer sends
// no new users to the instance meanwhile.
func (r *Registry) HealthOwn(name string, check func(context.Context) error) {
	r.claim("health", name)
	r.checks = append(r.checks, HealthCheck{Name: name, Check: check, Own: true})
}

// Collect adds Prometheus collectors.
func (r *Registry) Collect(cs ...prometheus.Collector) { r.collectors = append(r.collectors, cs...) }

// Routes returns the registered routes, in order.
func (r *Registry) Routes() []Route { return r.routes }

// Handlers returns the registered HTTP handlers by pattern.
func (r *Registry) Handlers() map[string]http.Handler { return r.handlers }

// Endpoints returns the endpoints outside of routes, sorted by plugin, use and name.
func (r *Registry) Endpoints() []PluginEndpoint {
	all := slices.Clone(r.endpoints)
	sorted.By(all, func(a, b PluginEndpoint) int {
		return cmp.Or(strings.Compare(a.Plugin, b.Plugin), strings.Compare(a.Use, b.Use), strings.Compare(a.Name, b.Name))
	})
	return all
}

// HealthChecks returns the registered readiness checks, in order.
func (r *Registry) HealthChecks() []HealthCheck { return r.checks }

// Collectors returns the registered collectors.
func (r *Registry) Collectors() []prometheus.Collector { return r.collectors }

// Services returns the registered services, in the order they start.
func (r *Registry) Services() []NamedService { return r.services }

// Has reports whether a plugin is registered: it is in the binary, and the settings do not disable it. Call
// it when services start, or later: during Register the plugins that follow are not there yet.
func (r *Registry) Has(plugin string) bool {
	_, registered := r.names["plugin "+plugin]
	return registered
}

// CheckCollectors reports collectors that can't live in one Prometheus registry.
func (r *Registry) CheckCollectors() error {
	check := prometheus.NewPedanticRegistry()
	var errs []error
	for _, c := range r.collectors {
		errs = append(errs, check.Register(c))
	}
	return errors.Join(errs...)
}
