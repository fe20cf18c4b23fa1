package portable

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Batches show how a plugin stores its work in batches: the time and the size of each, and why transactions failed.
// Build it with NewBatches. It is safe for concurrent use.
type Batches struct {
	seconds, size *prometheus.HistogramVec
	failures      *prometheus.CounterVec
}

// BatchNames are the names of Batches. Each series of an operation and of a cause exists from the first scrape.
type BatchNames struct {
	Prefix     string   // of the metrics, such as millrace_once
	Unit       string   // what a batch has, such as effects: the end of a name, and in a help text
	Of         string   // whose transactions they are, such as "the ledger of effects"
	Operations []string // of Done
	Causes     []string // of Failed
	Retried    string   // says in a help text which causes are tried again
}

// NewBatches returns the metrics.
func NewBatches(n BatchNames) *Batches {
	b := &Batches{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    n.Prefix + "_batch_duration_seconds",
			Help:    "Time of storing one batch of " + n.Unit + ", with its waits for a connection and for locks, by operation.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"operation"}),
		size: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    n.Prefix + "_batch_" + n.Unit,
			Help:    "Number of " + n.Unit + " per batch, by operation.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}, []string{"operation"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: n.Prefix + "_transaction_failures_total",
			Help: "Transactions of " + n.Of + " that failed, by cause. " + n.Retried + " For data and refused see the log.",
		}, []string{"cause"}),
	}
	for _, operation := range n.Operations {
		b.seconds.WithLabelValues(operation)
		b.size.WithLabelValues(operation)
	}
	for _, cause := range n.Causes {
		b.failures.WithLabelValues(cause)
	}
	return b
}

// Collectors returns all metrics.
func (b *Batches) Collectors() []prometheus.Collector {
	return []prometheus.Collector{b.seconds, b.size, b.failures}
}

// Done notes a batch that was stored, or was tried in vain.
func (b *Batches) Done(operation string, size int, took time.Duration) {
	b.seconds.WithLabelValues(operation).Observe(took.Seconds())
	b.size.WithLabelValues(operation).Observe(float64(size))
}

// Failed notes a failed transaction.
func (b *Batches) Failed(cause string) { b.failures.WithLabelValues(cause).Inc() }
