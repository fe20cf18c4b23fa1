package kafka

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// metrics is the plugin's one collector. Gauges are computed from the live claims when they are
// collected, so that a revoked partition leaves no stale value behind.
type metrics struct {
	bySubscription           [subscriptionCounters]*prometheus.CounterVec
	published, publishErrors *prometheus.CounterVec

	inFlight, notDue, lag, lagAge, openTransaction, headRecords, headSeconds, headOffset *prometheus.Desc
	unreadable, waiting                                                                  *prometheus.Desc

	mu   sync.Mutex
	subs map[*subscription]struct{}
}

// The counters of a subscription.
const (
	countMarked = iota
	countNacked
	countRedelivered
	countSkipped
	countMoved
	countAbandoned
	countSessions
	subscriptionCounters
)

func newMetrics() *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_kafka_" + name, Help: help}, labels)
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_kafka_"+name, help, []string{"topic", "group", "partition"}, nil)
	}
	return &metrics{
		bySubscription: [subscriptionCounters]*prometheus.CounterVec{
			countMarked:      vec("marked_total", "Records whose offset was marked for commit.", "topic", "group"),
			countNacked:      vec("nacked_total", "Deliveries that were nacked.", "topic", "group"),
			countRedelivered: vec("redelivered_total", "Deliveries of a record after a nack.", "topic", "group"),
			countSkipped:     vec("skipped_total", "Records not run again because a former owner had finished them beyond its commit.", "topic", "group"),
			countMoved:       vec("moved_total", "Retry records published to the end of their topic again before they were due, to leave room or because they were too old.", "topic", "group"),
			countAbandoned:   vec("abandoned_total", "Deliveries abandoned at close because no answer came in time.", "topic", "group"),
			countSessions:    vec("sessions_total", "Assignments of partitions by the consumer group; every rebalance ends with one.", "topic", "group"),
		},
		published:       vec("published_total", "Records published durably.", "topic"),
		publishErrors:   vec("publish_errors_total", "Records that could not be published.", "topic"),
		inFlight:        desc("in_flight", "Records delivered and not yet answered."),
		notDue:          desc("not_due", "Records held until they are due."),
		lag:             desc("lag", "Records between the last mark and the end of the partition, also those that an open transaction hides."),
		lagAge:          desc("lag_age_seconds", "For how long the broker has not said where the partition ends; the lag is that of then."),
		openTransaction: desc("open_transaction_seconds", "For how long an open producer transaction has hidden records from all readers, and the readable end has not moved."),
		headRecords:     desc("head_of_line_records", "Acknowledged records that the first unacknowledged one of their partition holds back from the commit."),
		headSeconds:     desc("head_of_line_seconds", "For how long a record that holds back acknowledged ones has been the first unacknowledged one."),
		headOffset:      desc("head_of_line_offset", "Offset of the record that holds back acknowledged ones, where the gauges are those of one partition."),
		unreadable: prometheus.NewDesc("millrace_kafka_unreadable_partitions",
			"Partitions of this member that have no leader, or whose leader does not answer.", []string{"topic", "group"}, nil),
		waiting: prometheus.NewDesc("millrace_kafka_waiting_partitions",
			"Partitions of this member that wait because the group's commit can't be read.", []string{"topic", "group"}, nil),
		subs: map[*subscription]struct{}{},
	}
}

func (m *metrics) forSubscription(topic, group string) (counters [subscriptionCounters]prometheus.Counter) {
	for i, v := range m.bySubscription {
		counters[i] = v.WithLabelValues(topic, group)
	}
	return counters
}

func (m *metrics) counters() []*prometheus.CounterVec {
	return append(m.bySubscription[:], m.published, m.publishErrors)
}

func (m *metrics) add(s *subscription) {
	m.mu.Lock()
	m.subs[s] = struct{}{}
	m.mu.Unlock()
}

func (m *metrics) remove(s *subscription) {
	m.mu.Lock()
	delete(m.subs, s)
	m.mu.Unlock()
}

func (m *metrics) open() []*subscription {
	m.mu.Lock()
	defer m.mu.Unlock()
	subs := make([]*subscription, 0, len(m.subs))
	for s := range m.subs {
		subs = append(subs, s)
	}
	return subs
}

// claims returns the claims of all subscriptions.
func (m *metrics) claims() (all []*claim) {
	for _, s := range m.open() {
		all = append(all, s.live()...)
	}
	return all
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range m.counters() {
		v.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.inFlight, m.notDue, m.lag, m.lagAge, m.openTransaction, m.headRecords, m.headSeconds, m.headOffset, m.unreadable, m.waiting} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, v := range m.counters() {
		v.Collect(ch)
	}
	// Two subscriptions of one program may have the same topic and group. One of them has the claim
	// of a partition, except in the moment between two sessions.
	type place struct {
		topic, group string
		partition    int32
	}
	seen := map[place]bool{}
	totals := map[[2]string]claimStatus{}
	unreadable, waiting := map[[2]string]int{}, map[[2]string]int{}
	for _, s := range m.open() {
		of := [2]string{s.topic, s.group}
		unreadable[of] += s.groupClient.unreadable()
		waiting[of] += int(s.waiting.Load())
		for _, c := range s.live() {
			at := place{s.topic, s.group, c.partition}
			if seen[at] {
				continue
			}
			seen[at] = true
			l := c.status(time.Now())
			if s.config.PartitionMetrics {
				labels := []string{s.topic, s.group, strconv.Itoa(int(c.partition))}
				m.gauges(ch, l, labels)
				if l.heldBack > 0 {
					ch <- prometheus.MustNewConstMetric(m.headOffset, prometheus.GaugeValue, float64(l.headOffset), labels...)
				}
				continue
			}
			total := totals[of]
			total.add(l)
			totals[of] = total
		}
	}
	for of, total := range totals {
		m.gauges(ch, total, []string{of[0], of[1], ""})
	}
	for of, n := range unreadable {
		ch <- prometheus.MustNewConstMetric(m.unreadable, prometheus.GaugeValue, float64(n), of[0], of[1])
		ch <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(waiting[of]), of[0], of[1])
	}
}

// gauges sends those of a partition, or of all that are read of a topic.
func (m *metrics) gauges(ch chan<- prometheus.Metric, l claimStatus, labels []string) {
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(m.inFlight, float64(l.inFlight))
	gauge(m.notDue, float64(l.notDue))
	gauge(m.lag, float64(l.lag))
	gauge(m.lagAge, l.lagAge.Seconds())
	gauge(m.openTransaction, l.openFor.Seconds())
	gauge(m.headRecords, float64(l.heldBack))
	gauge(m.headSeconds, l.holdsBackFor().Seconds())
}

// claimStatus is what one claim shows of itself, or several together.
type claimStatus struct {
	inFlight, notDue, heldBack int
	lag, headOffset            int64
	lagAge, openFor, headFor   time.Duration
}

// holdsBackFor is for how long the first unacknowledged record has been first, if it holds back others.
func (l claimStatus) holdsBackFor() time.Duration {
	if l.heldBack == 0 {
		return 0
	}
	return l.headFor
}

// add adds what can be counted, and keeps the longest of what lasts.
func (l *claimStatus) add(other claimStatus) {
	*l = claimStatus{
		inFlight: l.inFlight + other.inFlight, notDue: l.notDue + other.notDue, heldBack: l.heldBack + other.heldBack,
		lag:    l.lag + other.lag,
		lagAge: max(l.lagAge, other.lagAge), openFor: max(l.openFor, other.openFor), headFor: max(l.holdsBackFor(), other.holdsBackFor()),
	}
}

func (c *claim) status(now time.Time) claimStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	end, age, openFor := c.endOf(now)
	l := claimStatus{inFlight: c.inFlight, notDue: len(c.held), heldBack: c.win.acked, lag: max(end-c.next, 0), lagAge: age, openFor: openFor}
	if first := c.win.first(); first != nil {
		l.headOffset, l.headFor = first.offset, now.Sub(c.win.since)
	}
	return l
}

// warnHead logs the head once when it has held back half a window for longer than after. A record
// that is not due is not logged.
func (c *claim) warnHead(after time.Duration) {
	now := time.Now()
	l := c.status(now)
	if l.headFor < after || 2*l.heldBack < len(c.win.ring) || l.heldBack == 0 {
		return
	}
	c.mu.Lock()
	first := c.win.first()
	skip := first == nil || first.offset == c.warned || first.due.After(now)
	if !skip {
		c.warned = first.offset
	}
	c.mu.Unlock()
	if skip {
		return
	}
	c.sub.log.Warn("kafka record holds back acknowledged ones", logs.Partition, c.partition, logs.Offset, l.headOffset,
		keyCount, l.heldBack, keyHeldFor, l.headFor.Round(time.Millisecond))
}

var _ prometheus.Collector = (*metrics)(nil)
