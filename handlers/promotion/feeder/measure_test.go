package feeder

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// The gauges show the contents of the ledger.
func TestMeasureShowsTheLedger(t *testing.T) {
	t.Parallel()
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	l, err := ledger.Open(t.Context(), cfg, ledger.Options{Instance: "measure", Lease: time.Minute, MaxActive: 1}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	require.NoError(t, l.Migrate(t.Context()))
	m := NewMetrics()
	f := New(Options{Ledger: func() *ledger.Ledger { return l }, Metrics: m, Log: slog.New(slog.DiscardHandler),
		Streams: map[string]*streams.Manager{"POINT": nil, "VOUCHER": nil}})
	age := func(kind string) float64 { return testutil.ToFloat64(m.oldest.WithLabelValues(kind)) }
	due := func(kind string) float64 { return testutil.ToFloat64(m.overdue.WithLabelValues(kind)) }
	paid := func() float64 { return testutil.ToFloat64(m.payouts.WithLabelValues("POINT", "SUCCESS")) }

	rec := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: 2}, SummaryID: 3, Payload: []byte(`{"amount":5}`)}
	require.NoError(t, l.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
	require.Eventually(t, func() bool { f.measure(t.Context()); return age("POINT") > 0 && due("POINT") > 0 }, 2*time.Minute, time.Millisecond)
	require.Zero(t, age("VOUCHER"))
	require.Zero(t, due("VOUCHER"))
	require.Zero(t, paid())
	measured := testutil.ToFloat64(m.measured)
	require.InDelta(t, float64(time.Now().Unix()), measured, 60)

	begun, err := l.Begin(t.Context(), rec)
	require.NoError(t, err)
	_, err = l.Settle(t.Context(), payouts.CallResult{Key: rec.Key, CallResult: rules.CallResult{Epoch: begun.Epoch, Outcome: rules.Done, Receipt: "T"}})
	require.NoError(t, err)
	f.measure(t.Context())
	require.Zero(t, age("POINT"))
	require.Zero(t, due("POINT"))
	require.Zero(t, paid(), "settled payouts are counted seldom")
	f.counted = time.Time{}
	f.measure(t.Context())
	require.InDelta(t, 1, paid(), 0)
	require.Equal(t, []ledger.Totals{{Type: "POINT", Paid: 1}}, f.Measured().Totals)
	require.Empty(t, f.Measured().Paused)
	require.NoError(t, l.Pause(t.Context(), rec.OfPromotion(), ledger.Steering{Who: "me", Why: "a test"}))
	f.Remeasure(t.Context()) // after an action nobody waits for the next count
	f.measure(t.Context())
	require.Len(t, f.Measured().Paused, 1, "known between two counts")
	require.Equal(t, rec.OfPromotion(), f.Measured().Paused[0].Promotion)
	require.NoError(t, l.Resume(t.Context(), rec.OfPromotion(), ledger.Steering{Who: "me", Why: "a test"}))

	waiting := func(kind string) float64 { return testutil.ToFloat64(m.waiting.WithLabelValues(kind)) }
	require.Zero(t, waiting("POINT"))
	for id := range int64(3) { // one has the place
		rec.Promotion = 5 + id
		require.NoError(t, l.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
		_, err = l.Admit(t.Context(), rec.OfPromotion())
		require.NoError(t, err)
	}
	f.measure(t.Context())
	require.InDelta(t, 2, waiting("POINT"), 0)
	require.Zero(t, waiting("VOUCHER"))

	require.NoError(t, l.Close())
	measured = testutil.ToFloat64(m.measured)
	f.measure(t.Context())
	require.InDelta(t, measured, testutil.ToFloat64(m.measured), 0, "unchanged while the ledger does not answer")
	last := f.Measured()
	require.Len(t, last.Waiting, 3, "those of the last answer")
	require.ErrorContains(t, last.Check(time.Now()), "the ledger has not been measured since "+last.At.UTC().Format(time.RFC3339))
}

// A measurement that hangs is an error after three intervals, and the error says since when.
// A sequence that is behind its table turns the instance red, with the statement that repairs it.
func TestMeasureFindsASequenceBehindItsTable(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		cfg := ledger.DefaultConfig()
		cfg.DSN = setting.NewSecret(sqldbtest.Schema(t))
		l, err := ledger.Open(t.Context(), cfg, ledger.Options{Instance: "measure", Lease: time.Minute}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		require.NoError(t, l.Migrate(t.Context()))
		rec := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: 2}, SummaryID: 3, Payload: []byte(`{"amount":5}`)}
		require.NoError(t, l.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
		f := New(Options{Ledger: func() *ledger.Ledger { return l }, Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
		f.measure(t.Context())
		require.NoError(t, f.Measured().Err)

		conn, err := pgx.Connect(t.Context(), cfg.DSN.Reveal())
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		_, err = conn.Exec(t.Context(), `ALTER TABLE payouts ALTER COLUMN id RESTART WITH 1`)
		require.NoError(t, err)
		f.Remeasure(t.Context())
		require.ErrorIs(t, f.Measured().Err, ledger.ErrRefusedByDatabase)
		require.ErrorContains(t, f.Measured().Check(time.Now()), "SELECT setval")
	})
}

func TestAMeasurementIsTooOld(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := Measurement{At: at}
	require.NoError(t, m.Check(at.Add(3*MeasureInterval)))
	require.EqualError(t, m.Check(at.Add(3*MeasureInterval+1)),
		"the ledger has not been measured since 2026-01-02T03:04:05Z, for 15s: the measurement has not returned")
	require.EqualError(t, Measurement{}.Check(at), "the ledger has not been measured since the start: the measurement has not returned")
	require.EqualError(t, Measurement{At: at, Err: errors.New("no route to host")}.Check(at.Add(time.Second)),
		"the ledger has not been measured since 2026-01-02T03:04:05Z, for 1s: no route to host")
}
