package promotion

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// stalledAfter is the age of due work at which an instance that settles nothing is not ready.
const stalledAfter = time.Minute

// readiness is the readiness check of the plugin. It reads the last measurement of the feeder and
// asks no server.
type readiness struct {
	measured func() feeder.Measurement
	progress *payout.Progress
	paused   func(route string) bool // by an operator
}

// waits reports whether an operator has paused a route that pays promotions of a type.
func (r readiness) waits(of payouts.Type) bool {
	t, known := promotiontype.ByName(string(of))
	if !known {
		return false
	}
	pays := &payout.Processor{Type: t}
	return r.paused(pays.AcceptRoute()) || r.paused(pays.StreamRoute()) || r.paused(pays.RetryRoute())
}

// pausedRoutes is the metric of the types that wait. Alerts about a type can't know the names of its routes.
type pausedRoutes struct{ readiness }

func pausedRouteDesc() *prometheus.Desc {
	return prometheus.NewDesc("millrace_promotion_route_paused",
		"1 while an operator has paused a route that pays promotions of the type, as this instance knows it.", []string{"type"}, nil)
}

// Describe implements prometheus.Collector.
func (pausedRoutes) Describe(ch chan<- *prometheus.Desc) { ch <- pausedRouteDesc() }

// Collect implements prometheus.Collector.
func (p pausedRoutes) Collect(ch chan<- prometheus.Metric) {
	for _, t := range promotiontype.Names() {
		paused := 0.0
		if p.waits(payouts.Type(t)) {
			paused = 1
		}
		ch <- prometheus.MustNewConstMetric(pausedRouteDesc(), prometheus.GaugeValue, paused, t)
	}
}

// check reports the age of the oldest unpaid payout of each promotion. It fails when the ledger is
// not measured any more, or when work is due, its route is not paused, and this instance settles nothing.
func (r readiness) check(ctx context.Context) error {
	m := r.measured()
	if err := m.Check(time.Now()); err != nil {
		return err
	}
	oldest := map[string]float64{}
	stalled, longest := 0, -1
	for i, w := range m.Waiting {
		oldest[w.Promotion.String()] = w.OldestUnpaid.Seconds()
		if w.Overdue <= stalledAfter || r.waits(w.Promotion.Type) {
			continue
		}
		if stalled++; longest < 0 || w.Overdue > m.Waiting[longest].Overdue {
			longest = i
		}
	}
	telemetry.Detail(ctx, "oldest_unpaid_seconds", oldest)
	if stalled == 0 || r.progress.Within(stalledAfter) {
		return nil
	}
	w := m.Waiting[longest]
	return fmt.Errorf("%s: a payout has been due for %s, and this instance settles nothing (%d promotions wait so long)",
		w.Promotion, w.Overdue.Round(time.Second), stalled)
}

// conditions tells how the Money API is doing, what the database of the ledger refuses, which campaigns are paused, and
// which payouts wait for a person. It asks no server.
type conditions struct {
	*resources
	measured func() feeder.Measurement
}

// Conditions implements operate.Conditioned.
func (c conditions) Conditions() (all []operate.Condition) {
	if client := c.client.Load(); client != nil {
		for _, one := range client.Conditions() {
			one.Name, one.Place = "Money API", c.config.MoneyAPI.servers()[0] // the simulator's address says nothing
			all = append(all, one)
		}
	}
	if l := c.opened.Load(); l != nil {
		if refused, ok := l.Refused(time.Now()); ok {
			refused.Name = "ledger of payouts"
			all = append(all, operate.Condition{Check: refused, Page: "campaigns"})
		}
	}
	m := c.measured()
	for _, t := range promotiontype.All() {
		route := (&payout.Processor{Type: t}).StreamRoute()
		add := func(level operate.Level, remedy, format string, args ...any) {
			all = append(all, operate.Condition{Route: route, Page: "campaigns", Check: operate.Check{
				Name: "campaigns " + t.Name, Level: level, Text: fmt.Sprintf(format, args...), Remedy: remedy,
			}})
		}
		var paused []string
		longest := time.Duration(0)
		for _, p := range m.Paused {
			if string(p.Type) == t.Name && p.Holds {
				paused, longest = append(paused, p.Promotion.String()), max(longest, p.For)
			}
		}
		if len(paused) > 0 {
			add(operate.Warn, "resume each when it may be paid (campaign resume)", "%s paused, which holds payouts back: %s; the longest pause has lasted %s",
				operate.Are(len(paused), "campaign"), someOf(paused), longest.Round(time.Second))
		}
		for _, n := range m.Totals {
			if string(n.Type) != t.Name {
				continue
			}
			if n.Unknown > 0 {
				add(operate.Fail, "look at the Money API, then say for each whether it was paid (unknown resolve)", "%s unknown: perhaps paid, so none is sent again", operate.Are(n.Unknown, "payout"))
			}
		}
	}
	return all
}

// namedCampaigns is the number of campaigns that a condition names.
const namedCampaigns = 3

// someOf names the first of all, and says how many more there are.
func someOf(all []string) string {
	names := strings.Join(all[:min(len(all), namedCampaigns)], ", ")
	if more := len(all) - namedCampaigns; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

var _ operate.Conditioned = conditions{}
