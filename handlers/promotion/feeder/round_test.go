package feeder

import (
	"database/sql"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/streams"
)

// A round sends no command and takes no lease for a promotion whose payouts wait for their retries,
// and feeds the one of which a retry is overdue.
func TestARoundVisitsOnlyPromotionsWithWork(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		cfg := ledger.DefaultConfig()
		cfg.DSN = setting.NewSecret(dsn)
		cfg.Retry.First, cfg.Retry.Max = time.Hour, time.Hour
		l, err := ledger.Open(t.Context(), cfg, ledger.Options{Instance: "a", Lease: time.Minute, MaxActive: 10}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		require.NoError(t, l.Migrate(t.Context()))
		driver, source := "pgx", dsn
		if path, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
			driver, source = "sqlite", path+"?_busy_timeout=10000"
		}
		db, err := sql.Open(driver, source)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })

		const promotions, due = 300, 7
		var records []payouts.Record
		for id := range int64(promotions) {
			records = append(records, payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: id + 1, Target: 1}, SummaryID: 1, Payload: []byte(`{}`)})
		}
		for _, a := range l.Accept(t.Context(), records, ledger.AcceptOptions{}) {
			require.NoError(t, a.Err)
		}
		var group errgroup.Group
		for _, r := range records {
			group.Go(func() error {
				begun, err := l.Begin(t.Context(), r)
				if err == nil {
					_, err = l.Settle(t.Context(), payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: begun.Epoch, Outcome: rules.Throttled}})
				}
				return err
			})
		}
		require.NoError(t, group.Wait())

		client := redistest.Mini(t).Client(t)
		commands := redistest.Watch(client)
		open, waiting, prefix := func() *ledger.Ledger { return l }, new(atomic.Bool), redistest.Prefix(t, client)
		set := ActiveSet{Ledger: open, Type: "POINT", Waiting: waiting}
		m := streams.NewManager(streams.Options{Kind: streams.Kind{Type: "POINT", StreamPrefix: prefix, GroupPrefix: prefix + "group:"}, Config: streams.DefaultConfig,
			Client: func() goredis.UniversalClient { return client }, Activations: set, Created: set.Created, Deleted: set.Deleted, Instance: "a"})
		config := DefaultConfig()
		config.GracePeriod = time.Microsecond
		f := New(Options{Ledger: open, Streams: map[string]*streams.Manager{"POINT": m}, Config: config, Waiting: waiting,
			Metrics: NewMetrics(), Log: slog.New(slog.DiscardHandler)})
		leases := func() (ids []int64) {
			rows, err := db.QueryContext(t.Context(), `SELECT promotion_id FROM promotion_streams WHERE feeder <> ''`)
			require.NoError(t, err)
			defer func() { require.NoError(t, rows.Close()) }()
			for rows.Next() {
				var id int64
				require.NoError(t, rows.Scan(&id))
				ids = append(ids, id)
			}
			require.NoError(t, rows.Err())
			return ids
		}
		before := commands.Total()
		f.round(t.Context())
		require.Empty(t, leases())
		require.Equal(t, before, commands.Total(), "commands of Redis")

		_, err = db.ExecContext(t.Context(), `UPDATE payouts SET hint_due = accepted_at WHERE promotion_id = $1`, due)
		require.NoError(t, err)
		f.round(t.Context())
		require.Equal(t, []int64{due}, leases())
		require.InDelta(t, 1, testutil.ToFloat64(f.Metrics.fed.WithLabelValues("POINT", reasonOverdue)), 0)
	})
}
