package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testDB is the database of one test. Several instances may open it.
type testDB struct {
	dsn  string
	skew *atomic.Int64
}

// onEachDatabase runs the test on SQLite and on PostgreSQL, each with an empty database.
func onEachDatabase(t *testing.T, test func(t *testing.T, h *testDB)) {
	sqldbtest.Each(t, func(t *testing.T, dsn string) { test(t, newTestDB(dsn)) })
}

func newTestDB(dsn string) *testDB { return &testDB{dsn: dsn, skew: new(atomic.Int64)} }

func newSQLiteDB(t testing.TB) *testDB { return newTestDB(sqldbtest.File(t)) }

func newPostgresDB(t testing.TB) *testDB { return newTestDB(sqldbtest.Schema(t)) }

// advance moves the clock of all instances of this database.
func (h *testDB) advance(d time.Duration) { h.skew.Add(int64(d)) }

type tune func(*Config, *Options)

func withResults(_ *Config, o *Options) { o.OutcomeEvents = true }

// lateRetries makes retries due so late that a loaded machine does not reach them.
func lateRetries(c *Config, _ *Options) { c.Retry.First = c.Retry.Max }

func unannounced(_ *Config, o *Options) { o.AcceptUnannounced = true }

// operator also steers promotions that are not in the ledger yet.
var operator = Steering{Who: "ann", Why: "a test", Future: true}

func as(instance string) tune { return func(_ *Config, o *Options) { o.Instance = instance } }

func (h *testDB) config() (Config, Options) {
	cfg := DefaultConfig()
	cfg.DSN = setting.NewSecret(h.dsn)
	cfg.Retry = pipeline.Backoff{First: time.Second, Max: 30 * time.Second}
	return cfg, Options{Instance: "a", Lease: 8 * time.Second}
}

// open opens and migrates an instance, and closes it at the end of the test.
func (h *testDB) open(t testing.TB, tunes ...tune) *Ledger {
	t.Helper()
	cfg, opts := h.config()
	for _, f := range tunes {
		f(&cfg, &opts)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	l, err := open(ctx, cfg, opts, nil, h.skew)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	require.NoError(t, l.Migrate(ctx))
	return l
}

func key(promotion, target int64) payouts.Key {
	return payouts.Key{Type: "POINT", Promotion: promotion, Target: target}
}

func record(promotion, target int64) payouts.Record {
	return payouts.Record{Key: key(promotion, target), SummaryID: 9, Payload: fmt.Appendf(nil, `{"promotionId":%d,"targetId":%d,"amount":500}`, promotion, target),
		RecordKey: fmt.Append(nil, target), Origin: "topic/0@7", Route: "point", Headers: map[string]string{"traceparent": "00-1"}}
}

// acceptOne is Accept for one record.
func (l *Ledger) acceptOne(ctx context.Context, r payouts.Record, payNow bool) (AcceptResult, error) {
	a := l.Accept(ctx, []payouts.Record{r}, AcceptOptions{PayNow: payNow})[0]
	return a, a.Err
}

// beginTogether begins payouts in one batch.
func (l *Ledger) beginTogether(t testing.TB, records []payouts.Record) []*batchItem[*payouts.Record, BeginResult] {
	batch := newBatch[*payouts.Record, BeginResult](len(records), func(i int) (payouts.Key, *payouts.Record, error) { return records[i].Key, &records[i], nil })
	flushTogether(t, l.begins, batch)
	return batch
}

// flushTogether flushes a batch and waits for all results.
func flushTogether[Q, R any](t testing.TB, c *batcher[Q, R], batch []*batchItem[Q, R]) {
	if len(batch) == 0 {
		return
	}
	w := &caller{done: make(chan struct{})}
	w.left.Store(int32(len(batch)))
	for _, k := range batch {
		k.caller = w
	}
	if aside := c.flush(t.Context(), slices.Clone(batch)); len(aside) > 0 {
		c.flushAside(t.Context(), aside)
	}
	<-w.done
}

func mustAccept(t testing.TB, l *Ledger, r payouts.Record) AcceptResult {
	t.Helper()
	a, err := l.acceptOne(t.Context(), r, false)
	require.NoError(t, err)
	return a
}

func mustBegin(t testing.TB, l *Ledger, r payouts.Record) BeginResult {
	t.Helper()
	b, err := l.Begin(t.Context(), r)
	require.NoError(t, err)
	return b
}

func mustSettle(t testing.TB, l *Ledger, r payouts.CallResult) SettleResult {
	t.Helper()
	s, err := l.Settle(t.Context(), r)
	require.NoError(t, err)
	return s
}

func mustExplain(t testing.TB, l *Ledger, k payouts.Key) Explanation {
	t.Helper()
	x, err := l.Explain(t.Context(), k)
	require.NoError(t, err)
	return x
}

func inOrder(s []int64) []int64 {
	slices.Sort(s)
	return s
}

// acceptMany accepts targets 1 to n of a promotion.
func acceptMany(t testing.TB, l *Ledger, promotion, n int64) {
	t.Helper()
	var records []payouts.Record
	for target := range n {
		records = append(records, record(promotion, target+1))
	}
	for _, a := range l.Accept(t.Context(), records, AcceptOptions{}) {
		require.NoError(t, a.Err)
	}
}

func (l *Ledger) clock(t testing.TB) time.Time {
	var now time.Time
	require.NoError(t, l.store.read(t.Context(), func(_ querier, n time.Time) error { now = n; return nil }))
	return now
}

// endPayout makes a payout FAILED, or UNKNOWN with perhaps.
func endPayout(t *testing.T, l *Ledger, r payouts.Record, perhaps bool) {
	t.Helper()
	for range 20 {
		b := mustBegin(t, l, r)
		res := payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Rejected, Class: "no_such_target", Answer: "unknown target", Route: "point"}}
		if perhaps {
			res.Outcome, res.Class = rules.Unclear, "timeout"
		}
		s := mustSettle(t, l, res)
		if s.State.Settled() {
			return
		}
	}
	require.Fail(t, "not settled")
}

// once leaves one send and one lookup, without a delay.
func once(c *Config, _ *Options) { c.MaxRetries, c.Retry.First, c.Retry.Max = 0, 1, 1 }
