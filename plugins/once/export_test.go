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

// Work returns what an instance does every few seconds on the ledger that is open now.
func (e *Effects[T]) Work() func(ctx context.Context) {
	w, l := e.worker, e.plugin.ledger.Load()
	s := &workers{plugin: e.plugin}
	return func(ctx context.Context) {
		s.sweep(ctx, l)
		w.measure(ctx, l)
		w.stopTold = true
		w.tellStop(ctx, l)
	}
}

// OpenForCommand opens the ledger as a command does, which calls for nothing.
func (p *Plugin) OpenForCommand(ctx context.Context, r *pipeline.Registry) (closed func(context.Context) error, err error) {
	s := &ledgerService{plugin: p, kinds: func() []*worker { return pipeline.Offers[*worker](r) }}
	return s.Stop, s.Start(ctx)
}
