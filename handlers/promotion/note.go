package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
)

// note is what this instance writes about a promotion into its stream's meta, for campaign status.
func (r *resources) note(t payouts.Type, stream string) json.RawMessage {
	p, err := payouts.PromotionOfStream(t, stream)
	if err != nil {
		return nil
	}
	n := campaign.Note{Client: r.clientState()}
	if s, known := r.recent.Status(p); known {
		n.Recent = &s
	}
	text, _ := json.Marshal(n) // numbers and texts: can't fail
	return text
}

// clientGauges keeps the last reading of the client's gauges, because each stream asks for it.
type clientGauges struct {
	mu   sync.Mutex
	from *prometheus.Registry
	at   time.Time
	last campaign.Client
}

const gaugesFresh = time.Second

// clientState returns the state of this instance's client of the Money API. Without one there is no breaker, so it is closed.
func (r *resources) clientState() campaign.Client {
	g := &r.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.from != nil && time.Since(g.at) < gaugesFresh {
		return g.last
	}
	client := r.client.Load()
	if client == nil {
		return campaign.Client{Breaker: breakerStates()[0]}
	}
	if g.from == nil {
		g.from = prometheus.NewRegistry()
		for _, c := range client.Collectors() {
			if gauge, ok := c.(prometheus.GaugeFunc); ok {
				g.from.MustRegister(gauge)
			}
		}
	}
	values := map[string]float64{}
	families, _ := g.from.Gather() // gauges of functions that return a number
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] = m.GetGauge().GetValue()
		}
	}
	state := breakerStates()[min(int(values["millrace_once_http_breaker_state"]), len(breakerStates())-1)]
	g.last = campaign.Client{
		Breaker: state, Throttled: values["millrace_once_http_throttled_seconds"] > 0,
		Misconfigured: values["millrace_once_http_misconfigured"] > 0, Limit: int(values["millrace_once_http_in_flight_limit"]),
	}
	g.at = time.Now()
	return g.last
}

// breakerStates are the values of millrace_once_http_breaker_state.
func breakerStates() []string { return []string{"closed", "half-open", "open"} }

// awayLimit bounds the wait of a command for a server that it can do without. It is less than what a command waits
// for its servers by default.
const awayLimit = 2 * time.Second

// mayBeAway starts a server for a command that says what it knows without it.
func (r *resources) mayBeAway(s pipeline.Service) pipeline.Service {
	return &service{
		start: func(ctx context.Context) error {
			r.redisAway.Store(nil)
			ctx, cancel := context.WithTimeout(ctx, awayLimit)
			defer cancel()
			err := s.Start(ctx)
			if errors.Is(err, pipeline.ErrUnavailable) {
				r.redisAway.Store(&err)
				return nil
			}
			return err
		},
		stop: func(ctx context.Context) error { return s.Stop(ctx) },
	}
}
