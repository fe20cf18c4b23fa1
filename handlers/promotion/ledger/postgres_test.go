package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// waiters counts the sessions that wait for the lock of POINT:1 in the test's schema.
func waiters(t *testing.T, conn *pgx.Conn) (n int) {
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND classid = 1296650049 AND objid::bigint = hashtext(current_schema() || '/POINT/1')::bigint & 4294967295`).Scan(&n))
	return n
}

func (h *testDB) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// executes returns a function that executes a statement.
func executes(t *testing.T, conn *pgx.Conn) func(sql string) {
	return func(sql string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// A begin after a waiting pause queues behind it, although PostgreSQL would share the promotion's
// row with it.
func TestPauseGoesBeforeLaterBegins(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		conn := h.connect(t)
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		mustAccept(t, l, record(1, 1))

		first, _, err := l.store.begin(t.Context(), readRequest{promotions: []payouts.Promotion{p}})
		require.NoError(t, err)
		paused := make(chan error, 1)
		go func() { paused <- l.Pause(context.Background(), p, operator) }()
		require.Eventually(t, func() bool { return waiters(t, conn) == 1 }, 2*time.Minute, time.Millisecond)
		leased := make(chan BeginResult, 1)
		go func() {
			b, _ := l.Begin(context.Background(), record(1, 1))
			leased <- b
		}()
		var b BeginResult
		require.Eventually(t, func() bool {
			select {
			case b = <-leased:
				return true
			default:
				return waiters(t, conn) == 2
			}
		}, 2*time.Minute, time.Millisecond)
		first.rollback()
		require.NoError(t, <-paused)
		if b.Next == 0 {
			b = <-leased
		}
		require.Equal(t, "paused", b.Why)
	})
}

// A begin also waits for a writer that takes no advisory lock, such as a person in psql. It reads
// what that writer has committed, at any default isolation level.
func TestBeginWaitsForAnyWriterOfItsPromotion(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read"} {
		t.Run("postgres, "+isolation, func(t *testing.T) {
			t.Parallel()
			h := newPostgresDB(t)
			conn, writer := h.connect(t), h.connect(t)
			h.dsn += "&default_transaction_isolation=" + url.PathEscape(isolation)
			l := h.open(t)
			mustAccept(t, l, record(1, 1))
			tx, err := writer.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), `UPDATE promotions SET state = 'CANCELLED'`)
			require.NoError(t, err)
			leased := make(chan BeginResult, 1)
			go func() {
				b, err := untilAnswered(context.Background(), func(ctx context.Context) (BeginResult, error) { return l.Begin(ctx, record(1, 1)) })
				assert.NoError(t, err)
				leased <- b
			}()
			require.Eventually(t, func() bool { return waiters(t, conn) > 0 || len(leased) > 0 }, 2*time.Minute, time.Millisecond)
			require.Empty(t, leased)
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, "cancelled", (<-leased).Why)
		})
	}
}

// In a rolling upgrade the begins of the version before overlap without end, in shared mode. Here
// each commits only when the next one has its locks or waits for one.
func TestPauseGoesBeforeBeginsOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, watch := h.open(t), h.connect(t)
		p := payouts.Promotion{Type: "POINT", ID: 31}
		mustAccept(t, l, record(p.ID, 1))
		sessions := [2]*pgx.Conn{h.connect(t), h.connect(t)}
		begin := func(conn *pgx.Conn) error {
			_, err := conn.Exec(context.Background(), fmt.Sprintf(`BEGIN; SELECT pg_advisory_xact_lock_shared(1296650049, %d);
				SELECT state FROM promotions WHERE promotion_id = %d FOR SHARE`, oldPromotionLockKey(p), p.ID))
			return err
		}
		commit := func(conn *pgx.Conn) {
			_, err := conn.Exec(t.Context(), "COMMIT")
			require.NoError(t, err)
		}
		require.NoError(t, begin(sessions[0]))
		paused := make(chan error, 1)
		// Such begins would delay a pause indefinitely.
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		go func() { paused <- l.Pause(ctx, p, operator) }()
		var err error
		for n, answered := 0, false; !answered; n++ {
			now, next := sessions[n%2], sessions[(n+1)%2]
			leased := make(chan error, 1)
			go func() { leased <- begin(next) }()
			require.Eventually(t, func() bool {
				var waits bool
				require.NoError(t, watch.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)`,
					int32(next.PgConn().PID())).Scan(&waits))
				return waits || len(leased) > 0
			}, 2*time.Minute, time.Millisecond)
			commit(now)
			require.NoError(t, <-leased)
			select {
			case err = <-paused:
				answered = true
				commit(next)
			default:
			}
		}
		require.NoError(t, err)
	})
}

// A begin only takes the advisory lock, and schemas of one database have different locks.
func TestBeginDoesNotLockThePromotionRow(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, other, conn, p := h.open(t), newPostgresDB(t).open(t), h.connect(t), payouts.Promotion{Type: "POINT", ID: 32}
		mustAccept(t, l, record(p.ID, 1))
		u, _, err := l.store.begin(t.Context(), readRequest{promotions: []payouts.Promotion{p}})
		require.NoError(t, err)
		defer u.rollback()
		_, err = conn.Exec(t.Context(), `SELECT FROM promotions FOR UPDATE NOWAIT`)
		require.NoError(t, err)
		require.NoError(t, other.Pause(t.Context(), p, operator))
		require.NoError(t, u.commit(t.Context(), &writeSet{}), "the pause did not wait until the session was ended")
	})
}

// staleStore reports every row as changed that it has not locked.
type staleStore struct {
	store
	begins []bool
}

var errStale = errors.New("stale")

func (s *staleStore) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	s.begins = append(s.begins, w.lock)
	if !w.lock {
		return nil, nil, errStale
	}
	return s.store.begin(ctx, w)
}

func (s *staleStore) fault(err error) fault {
	if errors.Is(err, errStale) {
		return faultStale
	}
	return s.store.fault(err)
}

func TestStaleRowsAreLockedTheSecondTime(t *testing.T) {
	t.Parallel()
	l := newSQLiteDB(t).open(t)
	s := &staleStore{store: l.store}
	l.store = s
	mustAccept(t, l, record(1, 1))
	require.Equal(t, []bool{false, true}, s.begins)
}

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		s := h.open(t).store.(*postgres)
		for sql, want := range map[string]fault{
			`SELECT ledger_stale_row()`: faultStale,
			`SELECT 1/0`:                faultOther,
			`SELECT 'x'::int`:           faultOther,
			`INSERT INTO promotions VALUES ('A', 1, 'X', now(), now())`: faultOther,
			`SELECT nothing`: faultOther,
			// Only a record's own text and size are its fault.
			`SELECT convert_from('\xff', 'UTF8')`:                                                 faultData,
			`DO $$ BEGIN RAISE SQLSTATE '22P05'; END $$`:                                          faultData,
			`DO $$ BEGIN RAISE check_violation USING CONSTRAINT = 'payouts_payload_size'; END $$`: faultData,
			// A sequence behind its table, at its end, and a missing partition are not.
			`DO $$ BEGIN RAISE unique_violation USING CONSTRAINT = 'outbox_pkey'; END $$`:             faultOther,
			`DO $$ BEGIN RAISE SQLSTATE '2200H'; END $$`:                                              faultOther,
			`DO $$ BEGIN RAISE check_violation; END $$`:                                               faultOther,
			`DO $$ BEGIN RAISE check_violation USING CONSTRAINT = 'payouts_no_charge_denied'; END $$`: faultOther,
			`DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`:                                              faultRetry,
			`DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`:                                              faultRetry,
			`DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$`:                                              faultLocked,
			`DO $$ BEGIN RAISE SQLSTATE '57P01'; END $$`:                                              faultServer,
			`DO $$ BEGIN RAISE SQLSTATE '53100'; END $$`:                                              faultServer,
			`SELECT pg_terminate_backend(pg_backend_pid())`:                                           faultServer,
		} {
			_, err := s.hot.Exec(t.Context(), sql)
			require.Error(t, err, sql)
			require.Equal(t, want, s.fault(err), "%s: %v", sql, err)
		}
		require.Equal(t, faultNone, s.fault(nil))
	})
}

// After a switchover each session fails once. A ledger is not opened on a server that takes no
// writes.
func TestSessionsOfAStandbyAreNotKept(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l := h.open(t)
		s := l.store.(*postgres)
		for _, c := range []struct {
			pool  *pgxpool.Pool
			write func() error
		}{
			{s.hot, func() error { _, err := l.acceptOne(t.Context(), record(1, 1), false); return err }},
			{s.cold, func() error { return l.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 0) }},
		} {
			require.LessOrEqual(t, c.pool.Config().MaxConnLifetime, 10*time.Minute)
			require.Positive(t, c.pool.Config().MaxConnLifetimeJitter)
			var sessions []*pgxpool.Conn
			for range c.pool.Config().MaxConns {
				conn, err := c.pool.Acquire(t.Context())
				require.NoError(t, err)
				_, err = conn.Exec(t.Context(), "SET default_transaction_read_only = on")
				require.NoError(t, err)
				sessions = append(sessions, conn)
			}
			for _, conn := range sessions {
				conn.Release()
			}
			require.ErrorIs(t, c.write(), ErrUnavailable)
			err := c.write()
			for range sessions {
				if err == nil {
					break
				}
				err = c.write()
			}
			require.NoError(t, err)
		}
		cfg, opts := h.config()
		cfg.DSN = setting.NewSecret(h.dsn + "&default_transaction_read_only=on")
		_, err := Open(t.Context(), cfg, opts, nil)
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
	})
}

// A transaction that was rolled back because of a concurrent change has a line in PostgreSQL's log
// with the cause.
func TestAStaleRowNamesItsCause(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		l := newPostgresDB(t).open(t)
		s := l.store.(*postgres)
		mustAccept(t, l, record(1, 1))
		u, snap, err := s.begin(t.Context(), readRequest{keys: []payouts.Key{key(1, 1)}})
		require.NoError(t, err)
		defer u.rollback()
		row := snap.rows[key(1, 1)]
		row.Version += 2 // as if it was read before the change of another transaction
		err = u.commit(t.Context(), &writeSet{rows: []*storedRow{row}})
		var pg *pgconn.PgError
		require.ErrorAs(t, err, &pg)
		require.Contains(t, pg.Message, "changed by another transaction")
		require.Equal(t, faultStale, s.fault(err))
	})
}

// Sessions with the same slot update the same row of a summary. None holds it while it waits for
// something else: another row, or a round trip.
func TestSettleLocksSummariesLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tunes   []tune
		blocked string
	}{
		"ordinary":            {nil, `INSERT INTO payout_attempts SELECT id, 1, FALSE, 1, 'send', 'z', now(), now(), 'paid', '', '', 200, promotion_id FROM payouts WHERE target_id = 2`},
		"with outcome events": {[]tune{withResults}, `LOCK TABLE outbox`},
	} {
		t.Run("postgres, "+name, func(t *testing.T) {
			t.Parallel()
			h := newPostgresDB(t)
			l, conn, other := h.open(t, c.tunes...), h.connect(t), h.connect(t)
			payMany(t, l, 1, 1)
			mustAccept(t, l, record(1, 2))
			b := mustBegin(t, l, record(1, 2))
			tx, err := other.Begin(t.Context())
			require.NoError(t, err)
			_, err = tx.Exec(t.Context(), c.blocked)
			require.NoError(t, err)
			settled := make(chan error, 1)
			go func() {
				_, err := untilAnswered(context.Background(), func(ctx context.Context) (SettleResult, error) {
					return l.Settle(ctx, payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "T"}})
				})
				settled <- err
			}()
			require.Eventually(t, func() bool {
				var waits bool
				require.NoError(t, conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)))`,
					int32(other.PgConn().PID())).Scan(&waits))
				return waits
			}, 2*time.Minute, time.Millisecond)
			tag, err := conn.Exec(t.Context(), `SELECT FROM promotion_summary_slots FOR UPDATE NOWAIT`)
			require.NoError(t, err)
			require.EqualValues(t, 1, tag.RowsAffected())
			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-settled)
			s, err := l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 1})
			require.NoError(t, err)
			require.EqualValues(t, 2, s.Paid)
		})
	}
}

// Two batches would wait for each other if one had the order of Go and the other the order of the
// database.
func TestSummariesHaveOneOrderInAnyCollation(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		_, err := conn.Exec(t.Context(), `ALTER TABLE payouts ALTER COLUMN type TYPE text COLLATE "en-x-icu"`)
		require.NoError(t, err)
		var begun []*batchItem[*payouts.Record, BeginResult]
		for _, typ := range []payouts.Type{"A_B", "AB"} {
			r := record(1, 1)
			r.Type = typ
			mustAccept(t, l, r)
			begun = append(begun, l.beginTogether(t, []payouts.Record{r})...)
		}
		flushTogether(t, l.settles, newBatch[*payouts.CallResult, SettleResult](len(begun), func(i int) (payouts.Key, *payouts.CallResult, error) {
			return begun[i].key, &payouts.CallResult{Key: begun[i].key, CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done, Receipt: "T"}}, nil
		}))
		rows, err := conn.Query(t.Context(), `SELECT type FROM promotion_summary_slots ORDER BY ctid`)
		require.NoError(t, err)
		order, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{"AB", "A_B"}, order)
	})
}
