package once

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// AskAll takes all places of questions about states. free gives them back.
func (p *Plugin) AskAll() (free func()) {
	for range statesAtOnce {
		p.states <- struct{}{}
	}
	return func() {
		for range statesAtOnce {
			<-p.states
		}
	}
}

// Limited reports whether this instance has waited for a limit.
func (e *Effects[T]) Limited() bool { return e.worker.limited.Load() > 0 }

// Claims reports whether this instance claims effects.
func (e *Effects[T]) Claims() bool { return e.worker.claiming.Err() == nil }

// Collectors returns the metrics.
func (p *Plugin) Collectors() []prometheus.Collector { return p.metrics.collectors() }

// Measure does now what an instance does every few seconds.
func (e *Effects[T]) Measure(ctx context.Context) { e.worker.measure(ctx, e.plugin.ledger.Load()) }

// OpenForCommand opens the ledger as a command does, which calls for nothing.
func (p *Plugin) OpenForCommand(ctx context.Context, r *pipeline.Registry) (closed func(context.Context) error, err error) {
	s := &ledgerService{plugin: p, kinds: func() []*worker { return pipeline.Offers[*worker](r) }}
	return s.Stop, s.Start(ctx)
}
