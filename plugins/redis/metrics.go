package redis

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
)

type trimMetrics struct {
	trimmed, failures prometheus.Counter
	delaying          *prometheus.GaugeVec
}

func newTrimMetrics() trimMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	return trimMetrics{
		trimmed:  counter("trimmed_total", "Acknowledged entries removed from streams of routes."),
		failures: counter("trim_failures_total", "Failed attempts to trim a stream; each is retried."),
		delaying: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "redis", Name: "delayed_by_group",
			Help: "Streams read here whose trimming a foreign consumer group has delayed for 10 s or longer, by group.",
		}, []string{"group"}),
	}
}

func (p *Plugin) collectors() []prometheus.Collector {
	return slices.Concat(p.readers.Collectors(), p.published.Collectors(), []prometheus.Collector{
		p.trim.metrics.trimmed, p.trim.metrics.failures, p.trim.metrics.delaying, newPoolCollector(p.Client),
	})
}

// poolCollector shows the connection pool of a client that may not exist yet.
type poolCollector struct {
	client   func() goredis.UniversalClient
	conns    *prometheus.Desc
	timeouts *prometheus.Desc
}

func newPoolCollector(client func() goredis.UniversalClient) *poolCollector {
	return &poolCollector{
		client:   client,
		conns:    prometheus.NewDesc("millrace_redis_connections", "Connections of the shared client.", []string{"state"}, nil),
		timeouts: prometheus.NewDesc("millrace_redis_pool_timeouts_total", "Waits for a free connection that timed out.", nil, nil),
	}
}

func (p *poolCollector) Describe(ch chan<- *prometheus.Desc) { ch <- p.conns; ch <- p.timeouts }

func (p *poolCollector) Collect(ch chan<- prometheus.Metric) {
	c := p.client()
	if c == nil {
		return
	}
	s := c.PoolStats()
	ch <- prometheus.MustNewConstMetric(p.conns, prometheus.GaugeValue, float64(s.IdleConns), "idle")
	ch <- prometheus.MustNewConstMetric(p.conns, prometheus.GaugeValue, float64(s.TotalConns-min(s.TotalConns, s.IdleConns)), "busy")
	ch <- prometheus.MustNewConstMetric(p.timeouts, prometheus.CounterValue, float64(s.Timeouts))
}
