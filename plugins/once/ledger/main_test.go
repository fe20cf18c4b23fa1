package ledger

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/internal/sqldbtest"
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

// onPostgres runs the test on PostgreSQL alone.
func onPostgres(t *testing.T, test func(t *testing.T, h *testDB)) {
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(t, newTestDB(sqldbtest.Schema(t)))
	})
}

func newTestDB(dsn string) *testDB { return &testDB{dsn: dsn, skew: new(atomic.Int64)} }

// advance moves the clock of all instances of this database.
func (h *testDB) advance(d time.Duration) { h.skew.Add(int64(d)) }

type tune func(*Config, *Options)

func as(instance string) tune { return func(_ *Config, o *Options) { o.Instance = instance } }

// The kinds of the tests, one for each far side.
var testKinds = []string{"invoice", "parcel", "mail", "ping"}

// policyOf returns the policy of a kind, without random delays.
func policyOf(kind string) rules.Policy {
	p := rules.Policy{MaxAttempts: 3, MaxLookups: 3, MaxReleased: 3, Lease: 8 * time.Second, KeyTTL: time.Hour, UnderWay: time.Minute,
		Delay: func(failures int) time.Duration { return time.Duration(failures) * time.Second }}
	switch kind {
	case "invoice":
		p.Repeat = rules.ByKey
	case "parcel":
		p.Repeat = rules.ByLookup
	case "mail":
		p.Repeat = rules.Never
	case "ping":
		p.Repeat = rules.Always
	}
	return p
}

// open opens and migrates an instance with the kinds of the tests, and closes it at the end of the test.
func (h *testDB) open(t testing.TB, tunes ...tune) *Ledger {
	t.Helper()
	cfg, opts := DefaultConfig(), Options{Instance: "a", Skew: h.skew}
	cfg.DSN = setting.NewSecret(h.dsn)
	for _, f := range tunes {
		f(&cfg, &opts)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	l, err := Open(ctx, cfg, opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.CloseContext(context.Background()) })
	require.NoError(t, l.Migrate(ctx))
	var kinds []Kind
	for _, name := range testKinds {
		kinds = append(kinds, Kind{Name: name, Policy: policyOf(name)})
	}
	require.NoError(t, l.Register(ctx, kinds...))
	return l
}

func key(group string, id int) Key {
	return Key{Kind: "invoice", Group: group, ID: fmt.Sprint("n", id)}
}

func record(group string, id int) Record {
	return Record{Key: key(group, id), Part: "p", Payload: fmt.Appendf(nil, `{"id":%d}`, id), Origin: "test", Headers: map[string]string{"traceparent": "00-1"}}
}

func records(group string, n int) (all []Record) {
	for id := range n {
		all = append(all, record(group, id))
	}
	return all
}

// mustAccept accepts records and returns their results, none of which is an error.
func mustAccept(t testing.TB, l *Ledger, records ...Record) (all []Accepted) {
	t.Helper()
	results, err := l.Accept(t.Context(), records)
	require.NoError(t, err)
	for _, r := range results {
		require.NoError(t, r.Err)
		all = append(all, r.Accepted)
	}
	return all
}

// claimAll claims everything of a kind that is due, lane by lane.
func claimAll(t testing.TB, l *Ledger, kind string) (all []Claimed) {
	t.Helper()
	due, err := l.Due(t.Context(), kind)
	require.NoError(t, err)
	for _, lane := range due.Lanes {
		claimed, err := l.Claim(t.Context(), kind, lane, 1000)
		require.NoError(t, err)
		all = append(all, claimed...)
	}
	return all
}

func mustSettle(t testing.TB, l *Ledger, ends ...End) (all []Settled) {
	t.Helper()
	results, err := l.Settle(t.Context(), ends)
	require.NoError(t, err)
	for _, r := range results {
		require.NoError(t, r.Err)
		all = append(all, r.Settled)
	}
	return all
}

func end(c Claimed, o rules.Outcome) End {
	e := End{Key: c.Key, CallResult: rules.CallResult{Epoch: c.Epoch, Outcome: o, Class: "c", Answer: "said " + string(o), Status: 200}}
	if o == rules.Done {
		e.Receipt = "r-" + c.ID
	}
	return e
}

func mustExplain(t testing.TB, l *Ledger, k Key) Explanation {
	t.Helper()
	x, err := l.Explain(t.Context(), k)
	require.NoError(t, err)
	return x
}

func mustStatus(t testing.TB, l *Ledger, g Group) Status {
	t.Helper()
	s, err := l.Status(t.Context(), g)
	require.NoError(t, err)
	return s
}

func (l *Ledger) clock(t testing.TB) time.Time {
	var now time.Time
	require.NoError(t, l.store.read(t.Context(), func(_ querier, n time.Time) error { now = n; return nil }))
	return now
}

var operator = By{Who: "ann", Why: "a test"}

var nothingDue = Due{Next: -1, Limits: InForce{PerSecondFrom: FromSettings, InFlightFrom: FromSettings}}
