package promotion_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// The sequence of the outbox gives numbers that the table has, so no dead letter and no outcome
// event can be written. The answers of the Money API are not lost meanwhile: no payout becomes
// UNKNOWN, however long it takes, and each has its end after the repair.
func TestAnAnswerOutlivesADatabaseThatRefusesIt(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		for name, refuses := range map[string]bool{"refused": true, "paid": false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const payouts = 10
				faults := simulator.Faults{}
				if refuses {
					faults.RejectRate = 1
				}
				dsn := sqldbtest.Schema(t)
				sys := newSystem(t, faults, func(c *promotion.Config) {
					c.Ledger.DSN, c.Ledger.MaxRetries = setting.NewSecret(dsn), 1
					c.Ledger.Retry = pipeline.Backoff{First: 20 * time.Millisecond, Max: 50 * time.Millisecond}
					c.Results.Enabled = !refuses
				})
				sys.start() // with a sequence behind its table it would not start
				conn, err := pgx.Connect(t.Context(), dsn)
				require.NoError(t, err)
				defer func() { _ = conn.Close(t.Context()) }()
				_, err = conn.Exec(t.Context(), `INSERT INTO outbox (id, kind, type, promotion_id, target_id, class, error, payload, headers, origin, handler, attempts, created_at, published_at)
					OVERRIDING SYSTEM VALUE SELECT n, 'dead', 'POINT', 7, n, 'c', 'e', '', '', '', '', 1, now(), now() FROM generate_series(1, 50000) AS n`)
				require.NoError(t, err)
				sys.send("campaign-promotion-point-publish", points(1, payouts)...)
				var calls int
				require.Eventually(t, func() bool {
					require.NoError(t, conn.QueryRow(t.Context(), `SELECT coalesce(min(n), 0) FROM (SELECT (SELECT count(*) FROM attempts AS a WHERE a.payout_id = p.id) AS n
						FROM payouts AS p) AS c`).Scan(&calls))
					return calls >= 6
				}, 2*time.Minute, 20*time.Millisecond, "each payout is called more often than it has attempts: two sends and two lookups")
				c := sys.counts("POINT")
				require.Equal(t, []int64{payouts, payouts, 0, 0, 0}, []int64{c.Accepted, c.Pending, c.Unknown, c.Failed, c.Paid})

				_, err = conn.Exec(t.Context(), regexp.MustCompile(`SELECT setval.*`).FindString(portable.BehindTable("outbox", "id")))
				require.NoError(t, err)
				want := ledger.PayoutCounts{Accepted: payouts, Failed: payouts}
				if !refuses {
					want = ledger.PayoutCounts{Accepted: payouts, Paid: payouts}
				}
				require.Equal(t, want, sys.settle("POINT", payouts).PayoutCounts)
			})
		}
	})
}

// The answer of a call is refused at first, and then the database fails in another way, or each try
// takes so long that there are few. The answer is postponed all the same: the call is made again,
// with the same key, and its end is stored. No payout becomes UNKNOWN.
func TestAnAnswerThatWasRefusedIsPostponed(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		for name, body := range map[string]string{
			// More than one insert may belong to a try, so the first two are refused.
			"and then fails otherwise": `IF nextval('tries') <= 2 THEN RAISE SQLSTATE '23505'; END IF; RAISE SQLSTATE '53100';`,
			"slowly":                   `PERFORM pg_sleep(1.1); RAISE SQLSTATE '23505';`,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dsn := sqldbtest.Schema(t)
				sys := newSystem(t, simulator.Faults{RejectRate: 1}, func(c *promotion.Config) {
					c.Ledger.DSN, c.Ledger.MaxRetries = setting.NewSecret(dsn), 1
					c.Ledger.Retry = pipeline.Backoff{First: 20 * time.Millisecond, Max: 50 * time.Millisecond}
				})
				conn, err := pgx.Connect(t.Context(), dsn)
				require.NoError(t, err)
				defer func() { _ = conn.Close(t.Context()) }()
				_, err = conn.Exec(t.Context(), `CREATE SEQUENCE tries; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF (SELECT epoch FROM payouts WHERE target_id = NEW.target_id) = 1 THEN `+body+` END IF; RETURN NEW; END $$;
					CREATE TRIGGER refuse BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
				require.NoError(t, err)
				sys.start()
				sys.send("campaign-promotion-point-publish", points(1, 1)...)
				require.Equal(t, ledger.PayoutCounts{Accepted: 1, Failed: 1}, sys.settle("POINT", 1).PayoutCounts)
				var first string
				require.NoError(t, conn.QueryRow(t.Context(), `SELECT answer FROM attempts ORDER BY epoch LIMIT 1`).Scan(&first))
				require.Contains(t, first, "the database refused to store the end of this call (rejected)")
			})
		}
	})
}

// A ledger whose sequence of payouts gives numbers again, as after a move by logical replication, is
// not started: the error has the statement that repairs it.
func TestALedgerWithNumbersTwiceDoesNotStart(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		dsn := sqldbtest.Schema(t)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Ledger.DSN = setting.NewSecret(dsn) })
		conn, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		_, err = conn.Exec(t.Context(), `INSERT INTO payouts (id, type, promotion_id, target_id, summary_id, state, version, payload, accepted_at, hint, hint_due)
			OVERRIDING SYSTEM VALUE VALUES (1, 'POINT', 1, 1, 9, 'PENDING', 1, '{}', now(), 'none', now())`)
		require.NoError(t, err)
		reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test", Logger: pipelinetest.Logger(t)}, sys.all...)
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{})
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: 10 * time.Second})
		defer func() { require.NoError(t, rt.Stop(context.Background())) }()
		require.ErrorContains(t, rt.Start(t.Context()), "the sequence of payouts.id is behind its table")
	})
}
