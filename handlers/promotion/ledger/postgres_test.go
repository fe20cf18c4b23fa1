package ledger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// waiters counts the locks of the test's schema and advisory locks that are waited for.
func waiters(t *testing.T, conn *pgx.Conn) (n int) {
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
		AND application_name = 'millrace-' || current_schema()`).Scan(&n))
	return n
}

func (h *home) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestPauseGoesBeforeLaterBegins: a begin that comes after a waiting pause queues behind it, although
// PostgreSQL would share the promotion's row with it at once.
func TestPauseGoesBeforeLaterBegins(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresHome(t)
		conn := h.connect(t)
		var schema string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&schema))
		h.dsn += "&application_name=millrace-" + schema
		l := h.open(t)
		p := Promotion{"POINT", 1}
		mustAccept(t, l, record(1, 1))

		first, _, err := l.store.begin(t.Context(), want{promotions: []Promotion{p}})
		require.NoError(t, err)
		paused := make(chan error, 1)
		go func() { paused <- l.Pause(context.Background(), p, ann) }()
		require.Eventually(t, func() bool { return waiters(t, conn) == 1 }, 20*time.Second, time.Millisecond)
		begun := make(chan Begun, 1)
		go func() {
			b, _ := l.Begin(context.Background(), record(1, 1))
			begun <- b
		}()
		var b Begun
		require.Eventually(t, func() bool {
			select {
			case b = <-begun:
				return true
			default:
				return waiters(t, conn) == 2
			}
		}, 20*time.Second, time.Millisecond)
		first.rollback()
		require.NoError(t, <-paused)
		if b.Next == 0 {
			b = <-begun
		}
		require.Equal(t, "paused", b.Why)
	})
}

// TestBeginWaitsForAnyWriterOfItsPromotion: also for one that knows nothing of gates, such as a person.
func TestBeginWaitsForAnyWriterOfItsPromotion(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresHome(t)
		conn := h.connect(t)
		l := h.open(t)
		mustAccept(t, l, record(1, 1))
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `UPDATE promotions SET state = 'CANCELLED'`)
		require.NoError(t, err)
		begun := make(chan Begun, 1)
		go func() {
			b, _ := l.Begin(context.Background(), record(1, 1))
			begun <- b
		}()
		require.Never(t, func() bool { return len(begun) > 0 }, 300*time.Millisecond, 10*time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "cancelled", (<-begun).Why)
	})
}

// TestABeginLeavesThePromotionUnlocked: its gate is enough, and schemas of one database have gates of their own.
func TestABeginLeavesThePromotionUnlocked(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h, other := newPostgresHome(t), newPostgresHome(t)
		l, conn, p := h.open(t), h.connect(t), Promotion{"POINT", 1}
		mustAccept(t, l, record(1, 1))
		u, _, err := l.store.begin(t.Context(), want{promotions: []Promotion{p}})
		require.NoError(t, err)
		defer u.rollback()
		_, err = conn.Exec(t.Context(), `SELECT FROM promotions FOR UPDATE NOWAIT`)
		require.NoError(t, err)
		require.NoError(t, other.open(t).Pause(t.Context(), p, ann))
		require.NoError(t, u.commit(t.Context(), &changes{}), "the pause did not wait until the session was ended")
	})
}

// staleStore finds every row changed that it has not locked.
type staleStore struct {
	store
	begins []bool
}

var errStale = errors.New("stale")

func (s *staleStore) begin(ctx context.Context, w want) (unit, *snapshot, error) {
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
	l := newSQLiteHome(t).open(t)
	s := &staleStore{store: l.store}
	l.store = s
	mustAccept(t, l, record(1, 1))
	require.Equal(t, []bool{false, true}, s.begins)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresHome(t)
		s := h.open(t).store.(*postgres)
		for sql, want := range map[string]fault{
			`SELECT 1/0`:      faultStale,
			`SELECT 'x'::int`: faultData,
			`INSERT INTO promotions VALUES ('A', 1, 'X', now(), now())`: faultData,
			`SELECT nothing`: faultOther,
			`DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$`:    faultRetry,
			`DO $$ BEGIN RAISE SQLSTATE '40001'; END $$`:    faultRetry,
			`DO $$ BEGIN RAISE SQLSTATE '55P03'; END $$`:    faultLocked,
			`DO $$ BEGIN RAISE SQLSTATE '57P01'; END $$`:    faultServer,
			`DO $$ BEGIN RAISE SQLSTATE '53100'; END $$`:    faultServer,
			`SELECT pg_terminate_backend(pg_backend_pid())`: faultServer,
		} {
			_, err := s.hot.Exec(t.Context(), sql)
			require.Error(t, err, sql)
			require.Equal(t, want, s.fault(err), "%s: %v", sql, err)
		}
		require.Equal(t, faultNone, s.fault(nil))
	})
}

// TestSessionsOfAStandbyAreNotKept: after a switchover each session fails once, and a ledger is not opened on a server that
// takes no writes.
func TestSessionsOfAStandbyAreNotKept(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresHome(t)
		l := h.open(t)
		s := l.store.(*postgres)
		for _, c := range []struct {
			pool  *pgxpool.Pool
			write func() error
		}{
			{s.hot, func() error { _, err := l.Accept(t.Context(), record(1, 1), false); return err }},
			{s.cold, func() error { return l.Activate(t.Context(), Promotion{"POINT", 1}, 0) }},
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
		cfg.DSN = pipeline.NewSecret(h.dsn + "&default_transaction_read_only=on")
		_, err := Open(t.Context(), cfg, opts, nil)
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
	})
}
