package redis

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
)

type trimMetrics struct {
	trimmed, failures, unreadRemoved prometheus.Counter

	delaying, entries, maxLen *prometheus.GaugeVec
}

func (m trimMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.trimmed, m.failures, m.unreadRemoved, m.delaying, m.entries, m.maxLen}
}

func newTrimMetrics() trimMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help}, labels)
	}
	return trimMetrics{
		trimmed:  counter("trimmed_total", "Acknowledged entries removed from streams of routes."),
		failures: counter("trim_failures_total", "Failed attempts to trim a stream; each is retried."),
		unreadRemoved: counter("unread_removed_total",
			"Checks of a stream that found entries removed before a group had read them: evidence of loss."),
		delaying: gauge("delayed_by_group",
			"Streams read here whose trimming a foreign consumer group has delayed for 10 s or longer, by group.", "group"),
		entries: gauge("shard_entries", "Entries in a shard.", "domain", "shard"),
		maxLen:  gauge("shard_max_len", "Setting max_len: entries of a shard at which producers are refused.", "domain", "shard"),
	}
}

type shardMetrics struct {
	owned  *prometheus.GaugeVec
	losses *prometheus.CounterVec
}

func newShardMetrics() shardMetrics {
	return shardMetrics{
		owned: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "redis", Name: "shards_owned",
			Help: "Shards of exclusive domains whose lease this instance has.",
		}, []string{"domain"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "redis", Name: "shard_lease_losses_total",
			Help: "Shards that another instance took while this one still had them.",
		}, []string{"domain"}),
	}
}

func newRefused() prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "redis", Name: "followed_refused",
		Help: "Followed streams that the server refuses to read: their keys have another type, or a right is missing.",
	})
}

func (p *Plugin) collectors() []prometheus.Collector {
	return slices.Concat(p.readers.Collectors(), p.published.Collectors(), p.trim.metrics.collectors(),
		[]prometheus.Collector{p.delays.waiting, p.refused, p.shards.owned, p.shards.losses, newPoolCollector(p.Client), pausedMetric{p}})
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
