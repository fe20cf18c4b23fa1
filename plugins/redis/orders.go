package redis

import (
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

var (
	//go:embed lua/order.lua
	orderSource string
	//go:embed lua/orders.lua
	ordersSource string
)

// The hash of what operators have ordered about routes, and the stream of their changes. They share a slot.
const (
	ordersKey      = "millrace:{routes}:orders"
	ordersAuditKey = "millrace:{routes}:audit"
)

const (
	ordersMost      = 1_000  // routes in the hash
	ordersAuditMost = 10_000 // about, in the audit
)

// errOrdersFull is returned for the pause of one more route.
var errOrdersFull = fmt.Errorf("redis: %d routes are paused already, which is the limit: resume those that no longer exist", ordersMost)

// routeOrder is what an operator has ordered about a route, as order.lua stores it.
type routeOrder struct {
	text   string // as it is stored
	at     int64  // in µs, by the clock of the server; a later order has a higher one
	paused bool
	by     orderedBy
}

type orderedBy struct {
	Who string `json:"who"`
	Why string `json:"why"`
}

func (o routeOrder) since() time.Time { return time.UnixMicro(o.at).UTC() }

// parseOrder reads a stored order. One that can't be read pauses its route, because nothing may start by
// mistake, until a command stores another one.
func parseOrder(text string) routeOrder {
	o := routeOrder{text: text}
	parts := strings.SplitN(text, " ", 3)
	var err error
	if len(parts) == 3 {
		o.at, err = strconv.ParseInt(parts[0], 10, 64)
		err = errors.Join(err, json.Unmarshal([]byte(parts[2]), &o.by))
		o.paused = parts[1] != "0"
	}
	if len(parts) != 3 || err != nil {
		return routeOrder{text: "0 1 {}", paused: true, by: orderedBy{Who: "nobody who is known", Why: "its order in Redis can't be read"}}
	}
	return o
}

// routeOrders are what this instance knows of the orders about its routes. Their copy in Redis is read with each
// renewal of the presence, and what the server has lost of them is put back. Safe for concurrent use.
type routeOrders struct {
	routes func() []pipeline.Route

	reading sync.Mutex                            // held during a read and the change that follows
	known   atomic.Pointer[map[string]routeOrder] // by route; read by the gates of the routes
	failing bool                                  // the last read has failed
}

// of returns the order about a route. Without one, the route is not paused.
func (o *routeOrders) of(route string) routeOrder {
	if known := o.known.Load(); known != nil {
		return (*known)[route]
	}
	return routeOrder{}
}

// read brings the known orders up to date. After an error they stay as they are.
func (o *routeOrders) read(ctx context.Context, c goredis.Scripter, log *slog.Logger) error {
	o.reading.Lock()
	defer o.reading.Unlock()
	var mine []any
	known := map[string]routeOrder{}
	if last := o.known.Load(); last != nil {
		known = maps.Clone(*last)
	}
	for route, one := range known {
		mine = append(mine, route, one.text)
	}
	flat, err := goredis.NewScript(ordersSource).Run(ctx, c, []string{ordersKey}, mine...).StringSlice()
	if err != nil {
		return fmt.Errorf("redis: read the orders about routes: %w", err)
	}
	found := byRoute(flat)
	for _, r := range o.routes() {
		text, ordered := found[r.Name]
		if next := parseOrder(text); ordered && next.text != known[r.Name].text {
			logOrder(log, r.Name, known[r.Name], next)
			known[r.Name] = next
		}
	}
	o.known.Store(&known)
	return nil
}

func logOrder(log *slog.Logger, route string, last, next routeOrder) {
	log = log.With(slog.String(logs.Route, route), slog.String("who", next.by.Who), slog.String("why", next.by.Why), slog.Time("ordered", next.since()))
	switch {
	case next.paused:
		log.Info("route paused by an operator")
	case last.paused: // else it was resumed before this instance has started
		log.Info("route resumed by an operator")
	}
}

// follow is read for the renewals of the presence. It warns once about a read that fails while the presence
// can be renewed.
func (o *routeOrders) follow(ctx context.Context, c goredis.Scripter, log *slog.Logger) {
	err := o.read(ctx, c, log)
	if err != nil && !o.failing {
		log.Warn("the orders about routes can't be read, the last ones stay in force", logs.Err(err))
	}
	o.failing = err != nil
}

func byRoute(flat []string) map[string]string {
	all := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		all[flat[i]] = flat[i+1]
	}
	return all
}

// storedOrder reads what is ordered about a route. ordered is false when nothing ever was.
func storedOrder(ctx context.Context, c goredis.Cmdable, route string) (o routeOrder, ordered bool, err error) {
	text, err := c.HGet(ctx, ordersKey, route).Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return routeOrder{}, false, nil
	case err != nil:
		return routeOrder{}, false, answered(fmt.Errorf("redis: read the order about route %s: %w", route, err))
	}
	return parseOrder(text), true, nil
}

// storeOrder pauses or resumes a route, and returns the order that holds then. changed is false when the route was so
// already. Nothing is recorded then.
func storeOrder(ctx context.Context, c goredis.Scripter, route string, paused bool, by orderedBy) (o routeOrder, changed bool, err error) {
	state := "0"
	if paused {
		state = "1"
	}
	encoded, err := json.Marshal(by)
	if err != nil {
		return routeOrder{}, false, fmt.Errorf("redis: encode the order: %w", err)
	}
	reply, err := goredis.NewScript(orderSource).Run(ctx, c, []string{ordersKey, ordersAuditKey},
		route, state, encoded, by.Who, by.Why, ordersMost, ordersAuditMost).Slice()
	if err != nil {
		return routeOrder{}, false, answered(fmt.Errorf("redis: order about route %s: %w", route, err))
	}
	if len(reply) != 2 {
		return routeOrder{}, false, fmt.Errorf("redis: order about route %s: unexpected reply %v", route, reply)
	}
	code, _ := reply[0].(int64)
	text, _ := reply[1].(string)
	switch {
	case code < 0:
		return routeOrder{}, false, errOrdersFull
	case text == "": // nothing was ever ordered about it
		return routeOrder{}, false, nil
	}
	return parseOrder(text), code > 0, nil
}

// pausedMetric has a series per route of this instance.
type pausedMetric struct{ p *Plugin }

func pausedDesc() *prometheus.Desc {
	return prometheus.NewDesc("millrace_route_paused_seconds",
		"Time since an operator has paused the route, as this instance knows it; 0 while it is not paused.", []string{"route", "source", "group"}, nil)
}

// Describe implements prometheus.Collector.
func (pausedMetric) Describe(ch chan<- *prometheus.Desc) { ch <- pausedDesc() }

// Collect implements prometheus.Collector.
func (m pausedMetric) Collect(ch chan<- prometheus.Metric) {
	for _, r := range m.p.routes() {
		seconds, at := 0.0, r.From.Describe()
		for _, o := range []routeOrder{m.p.orders.of(r.Name), m.p.orders.of(r.RetryOf())} {
			if o.paused {
				seconds = max(seconds, time.Since(o.since()).Seconds(), 0.001) // the server's clock may be ahead
			}
		}
		ch <- prometheus.MustNewConstMetric(pausedDesc(), prometheus.GaugeValue, seconds, r.Name, at.Name, at.Group)
	}
}

// routes returns the routes of the process.
func (p *Plugin) routes() []pipeline.Route {
	p.delays.mu.Lock()
	defer p.delays.mu.Unlock()
	if p.delays.routes == nil {
		return nil
	}
	return p.delays.routes.Routes()
}

// RoutePaused implements pipeline.RoutePauser by the orders that this instance has read last.
func (p *Plugin) RoutePaused(route string) bool { return p.orders.of(route).paused }

// routeNames returns the names of routes, in their order.
func routeNames(routes []pipeline.Route) []string {
	names := make([]string, len(routes))
	for i, r := range routes {
		names[i] = r.Name
	}
	return names
}

var _ pipeline.RoutePauser = (*Plugin)(nil)
