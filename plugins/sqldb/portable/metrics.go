package portable

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Pool is the state of one pool of connections: how many are in use, idle and allowed, how often a
// statement waited for one, and for how long in all.
type Pool struct {
	Name               string
	InUse, Idle, Limit int
	Waits              int64
	Waited             time.Duration
}

// PoolOf returns the state of db.
func PoolOf(name string, db *sql.DB) Pool {
	s := db.Stats()
	return Pool{Name: name, InUse: s.InUse, Idle: s.Idle, Limit: s.MaxOpenConnections, Waits: s.WaitCount, Waited: s.WaitDuration}
}

// Metrics show one open database at a time: its connections, and the sizes of its tables as they were
// measured last. Collecting them sends no statement. Build it with NewMetrics. It is safe for concurrent
// use.
type Metrics struct {
	open                              atomic.Pointer[func() []Pool]
	sizes                             atomic.Pointer[[]tableSize]
	connections, limit, waits, waited *prometheus.Desc
	bytes, rows                       *prometheus.Desc
}

// NewMetrics returns metrics whose names begin with the prefix, such as millrace_deadletter. of says in
// their help texts whose database it is.
func NewMetrics(prefix, of string) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+"_"+name, fmt.Sprintf(help, of), labels, nil)
	}
	return &Metrics{
		connections: desc("connections", "Open connections to the database of %s, by pool and state (in_use, idle).", "pool", "state"),
		limit:       desc("connections_limit", "The most connections to the database of %s, by pool.", "pool"),
		waits:       desc("connection_waits_total", "Times that a statement waited for a connection to the database of %s, by pool.", "pool"),
		waited:      desc("connection_wait_seconds_total", "Time that statements waited for a connection to the database of %s, by pool.", "pool"),
		bytes:       desc("table_bytes", "Size of a table of %s with its indexes in PostgreSQL, by table. All instances export the same value; aggregate with max().", "table"),
		rows:        desc("table_rows", "Rows of a table of %s as PostgreSQL's statistics have them, by table and state (live, dead). All instances export the same value; aggregate with max().", "table", "state"),
	}
}

// Show collects the state of a database until hide. pools is called for each collection, and must not
// wait. After hide nothing is collected until the next Show.
func (m *Metrics) Show(pools func() []Pool) (hide func()) {
	shown := &pools
	m.open.Store(shown)
	return func() {
		if m.open.CompareAndSwap(shown, nil) {
			m.sizes.Store(nil)
		}
	}
}

// tableSize is what PostgreSQL knows about a table.
type tableSize struct {
	table      string
	bytes      int64
	live, dead int64 // rows
}

// Measure reads the sizes of tables, which are collected from then on. It does nothing in SQLite, where
// that would read the whole file.
func (m *Metrics) Measure(ctx context.Context, d Database, tables ...string) error {
	if d.Dialect != Postgres {
		return nil
	}
	names := make([]string, len(tables))
	args := make([]any, len(tables))
	for i, table := range tables {
		names[i], args[i] = fmt.Sprintf("$%d", i+1), table
	}
	var sizes []tableSize
	err := EachRow(ctx, d.QueryContext, func(row *sql.Rows) error {
		var t tableSize
		err := row.Scan(&t.table, &t.bytes, &t.live, &t.dead)
		sizes = append(sizes, t)
		return err
	}, `SELECT relname, pg_total_relation_size(relid), n_live_tup, n_dead_tup FROM pg_stat_user_tables
		WHERE schemaname = current_schema() AND relname IN (`+strings.Join(names, ", ")+`) ORDER BY relname`, args...)
	if err != nil {
		return err
	}
	m.sizes.Store(&sizes)
	return nil
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.connections, m.limit, m.waits, m.waited, m.bytes, m.rows} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	pools := m.open.Load()
	if pools == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, p := range (*pools)() {
		gauge(m.connections, float64(p.InUse), p.Name, "in_use")
		gauge(m.connections, float64(p.Idle), p.Name, "idle")
		gauge(m.limit, float64(p.Limit), p.Name)
		to <- prometheus.MustNewConstMetric(m.waits, prometheus.CounterValue, float64(p.Waits), p.Name)
		to <- prometheus.MustNewConstMetric(m.waited, prometheus.CounterValue, p.Waited.Seconds(), p.Name)
	}
	sizes := m.sizes.Load()
	if sizes == nil {
		return
	}
	for _, t := range *sizes {
		gauge(m.bytes, float64(t.bytes), t.table)
		gauge(m.rows, float64(t.live), t.table, "live")
		gauge(m.rows, float64(t.dead), t.table, "dead")
	}
}

var _ prometheus.Collector = (*Metrics)(nil)
