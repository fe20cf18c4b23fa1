package ledger

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Metrics show the database of one ledger at a time: its connections, its batches, and why transactions failed.
// Collecting them sends no statement. Build it with NewMetrics. It is safe for concurrent use.
type Metrics struct {
	batches  *portable.Batches
	database *portable.Metrics
}

// Operations of batches: a label.
const (
	opAccept = "accept"
	opClaim  = "claim"
	opSettle = "settle"
)

// causes are the values of the label cause, by the class of the error.
func causes() map[fault]string {
	return map[fault]string{faultRetry: "contended", faultLocked: "locked", faultData: "data", faultServer: "unreachable", faultOther: "refused"}
}

// NewMetrics returns the metrics for Options.Metrics. Each series of batches and failures exists from the first scrape.
func NewMetrics() *Metrics {
	return &Metrics{
		batches: portable.NewBatches(portable.BatchNames{
			Prefix: "millrace_once", Unit: "effects", Of: "the ledger of effects",
			Operations: []string{opAccept, opClaim, opSettle}, Causes: slices.Collect(maps.Values(causes())),
			Retried: "Those that were contended (deadlock, serialization), locked or unreachable are tried again.",
		}),
		database: portable.NewMetrics("millrace_once", "the ledger of effects"),
	}
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return append(m.batches.Collectors(), m.database)
}

// batch notes one batch. A nil Metrics notes nothing.
func (m *Metrics) batch(operation string, effects int, took time.Duration) {
	if m != nil {
		m.batches.Done(operation, effects, took)
	}
}

// faultOf classifies the error of a transaction and counts it. What a caller of the ledger asked in vain, such as an
// effect that does not exist, is no failure of the database.
func (l *Ledger) faultOf(err error) fault {
	f := l.store.fault(err)
	if f == faultOther {
		if _, refused := sqldb.RefusalOf(err); !refused {
			return f
		}
	}
	if cause := causes()[f]; cause != "" && l.opts.Metrics != nil {
		l.opts.Metrics.batches.Failed(cause)
	}
	return f
}

// MeasureTables reads how large the tables are in PostgreSQL, for Options.Metrics.
func (l *Ledger) MeasureTables(ctx context.Context) error {
	if l.opts.Metrics == nil {
		return nil
	}
	return l.call(ctx, "measure the tables", func(ctx context.Context) error { return l.store.measureTables(ctx, l.opts.Metrics.database) })
}

// Pools of a store: a label of metrics. That for reports also serves sweeps and commands.
const (
	poolEffects = "effects"
	poolReports = "reports"
)

// tables are those of the ledger.
func tables() []string {
	return []string{
		"once_ledger", "once_kinds", "once_limits", "once_slots", "once_instances", "once_paused", "once_lost", "once_groups", "once_effects", "once_due", "once_attempts", "once_problems",
		"once_results", "once_deltas", "once_totals", "once_audit",
	}
}
