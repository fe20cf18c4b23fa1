package ledger

import (
	"context"
	"maps"
	"slices"
	"strings"
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
	opAccept      = "accept"
	opNotEnqueued = "not enqueued"
	opBegin       = "begin"
	opSettle      = "settle"
)

// causes are the values of the label cause, by the class of the error.
func causes() map[fault]string {
	return map[fault]string{
		faultRetry: "contended", faultLocked: "locked", faultStale: "stale", faultData: "data", faultServer: "unreachable", faultOther: "refused",
	}
}

// NewMetrics returns the metrics for Options.Metrics. Each series of batches and failures exists from the first scrape.
func NewMetrics() *Metrics {
	return &Metrics{
		batches: portable.NewBatches(portable.BatchNames{
			Prefix: "millrace_ledger", Unit: "payouts", Of: "the ledger of promotions",
			Operations: []string{label(opAccept), label(opNotEnqueued), label(opBegin), label(opSettle)}, Causes: slices.Collect(maps.Values(causes())),
			Retried: "Those that were contended (deadlock, serialization), locked, stale (a row had changed) or unreachable are tried again.",
		}),
		database: portable.NewMetrics("millrace_ledger", "the ledger of promotions"),
	}
}

// MeasureTables reads the sizes of the tables, which the metrics show from then on.
func (l *Ledger) MeasureTables(ctx context.Context) error {
	if l.opts.Metrics == nil {
		return nil
	}
	return l.store.measureTables(ctx, l.opts.Metrics.database)
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return append(m.batches.Collectors(), m.database)
}

func label(operation string) string { return strings.ReplaceAll(operation, " ", "_") }

// batch notes one transaction of a batch. A nil Metrics notes nothing.
func (m *Metrics) batch(operation string, payouts int, took time.Duration) {
	if m != nil {
		m.batches.Done(label(operation), payouts, took)
	}
}

// faultOf classifies the error of a transaction and counts it. What a caller of the ledger asked in vain, such as a
// payout that does not exist, is no failure of the database.
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

// Pools of a store: a label. The pool for reports also serves the feeder and commands.
const (
	poolPayouts = "payouts"
	poolReports = "reports"
)

// tables are those of the ledger.
func tables() []string {
	return []string{
		"payouts", "payout_attempts", "promotions", "promotion_streams", "promotion_summaries", "promotion_summary_slots",
		"attempts", "outbox", "ledger_audit", "ledger_replays", "ledger_identity",
	}
}
