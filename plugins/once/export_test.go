package once

import "github.com/prometheus/client_golang/prometheus"

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
