package redispoll

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// Metrics counts what readers and publishers do. No metric is labelled with a stream: there may be a
// million of them.
type Metrics struct {
	reads, emptyReads, readErrors prometheus.Counter
	entries, adopted, malformed   prometheus.Counter
	acks, ackFlushes              prometheus.Counter
	redeliveries, leftPending     prometheus.Counter
	heartbeats, lost, givenBack   prometheus.Counter
	ghosts, reclaimed             prometheus.Counter
	inHand, readers               prometheus.Gauge
	published, publishBatches     prometheus.Counter
	trimmed, trimFailures         prometheus.Counter
	delaying                      *prometheus.GaugeVec
}

// NewMetrics returns metrics that are not registered anywhere; see Collectors.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "redis", Name: name, Help: help})
	}
	return &Metrics{
		reads:        counter("reads_total", "XREADGROUP commands sent."),
		emptyReads:   counter("empty_reads_total", "XREADGROUP commands that brought nothing."),
		readErrors:   counter("read_errors_total", "XREADGROUP commands that failed."),
		entries:      counter("entries_total", "Entries taken in by readers, new ones and own pending ones."),
		adopted:      counter("adopted_total", "Entries taken in that were claimed from other readers."),
		malformed:    counter("malformed_entries_total", "Entries without the field message."),
		acks:         counter("acks_total", "Entries acknowledged."),
		ackFlushes:   counter("ack_flushes_total", "Commands that acknowledged them."),
		redeliveries: counter("redeliveries_total", "Nacked entries delivered again by the same reader."),
		leftPending:  counter("left_pending_total", "Entries left pending after too many nacks."),
		heartbeats:   counter("heartbeats_total", "Entries kept alive because they were long in hand."),
		lost:         counter("lost_total", "Entries that another reader claimed while they were in hand here."),
		givenBack:    counter("given_back_total", "Entries given back because no slot had begun them."),
		ghosts:       counter("ghost_entries_total", "Entries that are pending but deleted: evidence of loss."),
		reclaimed:    counter("reclaimed_total", "Idle entries of other readers claimed by sources."),
		inHand:       gauge("in_hand", "Entries that slots are working on."),
		readers:      gauge("readers", "Readers running."),
		published:    counter("published_total", "Entries published."),
		trimmed:      counter("trimmed_total", "Acknowledged entries removed from streams of routes."),
		trimFailures: counter("trim_failures_total", "Streams that could not be trimmed; tried again."),
		delaying: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "redis", Name: "delayed_by_group",
			Help: "Streams read here whose trimming a foreign consumer group has delayed for 10 s or longer, by group.",
		}, []string{"group"}),
		publishBatches: counter("publish_batches_total", "Pipelines that published them."),
	}
}

// Collectors returns everything, for a registry.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.reads, m.emptyReads, m.readErrors, m.entries, m.adopted, m.malformed, m.acks, m.ackFlushes,
		m.redeliveries, m.leftPending, m.heartbeats, m.lost, m.givenBack, m.ghosts, m.reclaimed,
		m.inHand, m.readers, m.published, m.publishBatches, m.trimmed, m.trimFailures, m.delaying,
	}
}

// poolCollector shows the connection pool of a client that may not exist yet.
type poolCollector struct {
	client   func() redis.UniversalClient
	conns    *prometheus.Desc
	timeouts *prometheus.Desc
}

func newPoolCollector(client func() redis.UniversalClient) *poolCollector {
	return &poolCollector{
		client:   client,
		conns:    prometheus.NewDesc("millrace_redis_connections", "Connections of the shared client.", []string{"state"}, nil),
		timeouts: prometheus.NewDesc("millrace_redis_pool_timeouts_total", "Waits for a free connection that timed out.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (p *poolCollector) Describe(ch chan<- *prometheus.Desc) { ch <- p.conns; ch <- p.timeouts }

// Collect implements prometheus.Collector.
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

var _ prometheus.Collector = (*poolCollector)(nil)
