package reclaim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Plugin is the capability "reclaim": one Reclaimer for all domains of plugins.redis.domains that
// are read here, and for each Target that a plugin offers (pipeline.Registry.Offer).
type Plugin struct {
	redis  *redis.Plugin
	config Config

	service *service // of the process that runs, set by Register

	mu   sync.Mutex
	lost []func(stream string, ids []string)
}

// New returns the plugin with default settings. The client of redis reads the presence of
// instances.
func New(redis *redis.Plugin) *Plugin {
	return &Plugin{redis: redis, config: DefaultConfig()}
}

// Name is the name of the plugin. A plugin that offers targets names it in Needs.
const Name = "reclaim"

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return Name }

// Settings returns the configuration for the loader.
func (p *Plugin) Settings() any { return &p.config }

// OnLost calls f for pending entries that were found deleted. It must be called before the services
// are started, and f must not block.
func (p *Plugin) OnLost(f func(stream string, ids []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = append(p.lost, f)
}

// Needs implements pipeline.Dependent.
func (p *Plugin) Needs() []string { return []string{"redis"} }

// Register adds the service and its metrics.
func (p *Plugin) Register(r *pipeline.Registry) error {
	metrics := newMetrics()
	r.Collect(metrics.Collectors()...)
	r.Offer(p)
	p.service = &service{p: p, registry: r, metrics: metrics}
	r.Service("reclaim", p.service)
	return nil
}

// service builds the Reclaimer when it is started: only then all targets have been offered.
type service struct {
	p        *Plugin
	registry *pipeline.Registry
	metrics  *metrics

	mu sync.Mutex
	r  *Reclaimer
}

func (s *service) Start(ctx context.Context) error {
	s.p.mu.Lock()
	lost := slices.Clone(s.p.lost)
	s.p.mu.Unlock()
	targets, env := pipeline.Offers[Target](s.registry), s.registry.Env()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.r != nil {
		return fmt.Errorf("reclaim: started already")
	}
	for _, d := range s.p.redis.TakeDomains() {
		targets = append(targets, Shards(d))
	}
	s.r = NewReclaimer(Options{
		Config: s.p.config, Instance: env.Instance, Targets: targets,
		Alive: func(ctx context.Context, instances ...string) (map[string]bool, error) {
			return redis.Alive(ctx, s.p.redis.Client(), instances...)
		},
		Marks: func(ctx context.Context) (map[string]int64, error) {
			return redis.Marks(ctx, s.p.redis.Client())
		},
		Logger:  env.Logger.With(slog.String(logs.Plugin, "reclaim")),
		metrics: s.metrics,
		Lost: func(stream string, ids []string) {
			for _, f := range lost {
				f(stream, ids)
			}
		},
	})
	return s.r.Start(ctx)
}

// reclaimer returns nil before the start.
func (s *service) reclaimer() *Reclaimer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.r
}

func (s *service) Stop(ctx context.Context) error {
	r := s.reclaimer()
	if r == nil {
		return nil
	}
	return r.Stop(ctx)
}

var (
	_ pipeline.Plugin       = (*Plugin)(nil)
	_ pipeline.Configurable = (*Plugin)(nil)
	_ pipeline.Service      = (*service)(nil)
)
