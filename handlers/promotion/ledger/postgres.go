package ledger

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// postgres is the store on PostgreSQL. Payouts have a pool of their own, whose sessions only use
// index scans and nested loops: docs/decisions/0019-forced-plans.md.
type postgres struct {
	hot   *pgxpool.Pool
	cold  *pgxpool.Pool
	log   *slog.Logger
	skew  *atomic.Int64
	conns int

	commits sqldb.Commits // of both pools
	guarded atomic.Bool   // new connections of hot are asked for their sequence
}

const coldConnections = 4

// Time limits of one wait for a lock. Each is an SQL value.
const (
	pgLockTimeout          = "1s" // less than the time limit of a settle (5 s)
	pgPromotionLockTimeout = "2s" // of a pause, resume or cancel
)

// pgStaleRow is the SQLSTATE of the function ledger_stale_row.
const pgStaleRow = "MR001"

func openPostgres(ctx context.Context, cfg Config, log *slog.Logger, skew *atomic.Int64) (*postgres, error) {
	s := &postgres{log: log, skew: skew, conns: cfg.Connections}
	var err error
	if s.hot, err = s.newPool(ctx, cfg.DSN, cfg.Connections, s.checkSequence, "jit = off", "enable_seqscan = off", "enable_bitmapscan = off",
		"enable_hashjoin = off", "enable_mergejoin = off", "plan_cache_mode = force_generic_plan", "lock_timeout = '"+pgLockTimeout+"'"); err != nil {
		return nil, err
	}
	// Rare statements with an order must read an index in that order, and join by index probes.
	if s.cold, err = s.newPool(ctx, cfg.DSN, coldConnections, nil, "jit = off", "enable_seqscan = off", "enable_sort = off",
		"enable_hashjoin = off", "enable_mergejoin = off"); err != nil {
		s.hot.Close()
		return nil, err
	}
	if err := s.hot.Ping(ctx); err != nil {
		c := s.hot.Config().ConnConfig
		_ = s.close()
		return nil, openError("postgres at "+net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), err)
	}
	return s, nil
}

// newPool opens a pool whose sessions have the settings. connected may refuse a new connection.
func (s *postgres) newPool(ctx context.Context, dsn setting.Secret, size int, connected func(context.Context, *pgx.Conn) error, settings ...string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn.Reveal())
	if err != nil {
		return nil, fmt.Errorf("ledger: dsn: %w", err) // pgx omits the password
	}
	c.MaxConns, c.MinConns, c.AfterConnect = int32(size), 0, connected
	sqldb.TunePostgres(c.ConnConfig)
	c.BeforeConnect = sqldb.Renew(dsn, s.log)
	s.commits.Watch(c.ConnConfig)
	sqldb.Set(c.ConnConfig, settings...)
	c.MaxConnLifetime, c.MaxConnLifetimeJitter = min(c.MaxConnLifetime, sqldb.ConnLifetime), sqldb.ConnLifetime/5
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("ledger: postgres: %w", err)
	}
	return pool, nil
}

func (s *postgres) flushers() int { return min(3, s.conns/3) }

func (s *postgres) pools() []portable.Pool {
	return []portable.Pool{sqldb.PoolOf(poolPayouts, s.hot), sqldb.PoolOf(poolReports, s.cold)}
}

func (s *postgres) measureTables(ctx context.Context, to *portable.Metrics) error {
	return sqldb.MeasureTables(ctx, s.cold, to, tables()...)
}

func (s *postgres) close() error {
	s.hot.Close()
	s.cold.Close()
	return nil
}

func (s *postgres) migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(s.cold)
	defer func() { _ = db.Close() }() // the pool stays open
	return migrations().Up(ctx, db, portable.Postgres, s.log)
}

// fault classifies errors by SQLSTATE.
func (s *postgres) fault(err error) fault {
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return faultNone
	case sqldb.Contended(err):
		return faultRetry
	case sqldb.Locked(err):
		return faultLocked
	case sqldb.Unreachable(err), errors.Is(err, ErrUnavailable):
		return faultServer
	case !errors.As(err, &pg):
		return faultOther
	case pg.Code == pgStaleRow:
		return faultStale
	case pg.ConstraintName == constraintOfRecord || slices.Contains(pgCodesOfRecord(), pg.Code):
		return faultData
	}
	return faultOther
}

// constraintOfRecord is the only constraint that a record can break. The other constraints guard the
// ledger against itself, or say that a sequence or partition is wrong.
const constraintOfRecord = "payouts_payload_size"

// pgCodesOfRecord are the SQLSTATEs that the text of a record can cause, in a database whose encoding
// lacks one of its characters. Every other error of class 22 or 23 is about the state of the server:
// the record is good, and becomes neither a dead letter nor a lost answer.
func pgCodesOfRecord() []string {
	const (
		characterNotInRepertoire = "22021"
		untranslatableCharacter  = "22P05"
	)
	return []string{characterNotInRepertoire, untranslatableCharacter}
}

func (s *postgres) now(t time.Time) time.Time { return t.UTC().Add(time.Duration(s.skew.Load())) }

// pgQuerier runs portable SQL on a pool or in a transaction.
type pgQuerier struct {
	db interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
		Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	}
}

func (q pgQuerier) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	tag, err := q.db.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (q pgQuerier) query(ctx context.Context, row func(scanner) error, sql string, args ...any) error {
	rows, err := q.db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (q pgQuerier) forUpdate(skipLocked bool) string {
	if skipLocked {
		return " FOR UPDATE SKIP LOCKED"
	}
	return " FOR UPDATE"
}

func (pgQuerier) anyOf(placeholder string, ids []int64) (string, any) {
	return portable.Postgres.AnyOf(placeholder, ids)
}

func (s *postgres) clock(ctx context.Context, q pgQuerier) (now time.Time, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan(&now) }, pgClock)
	return s.now(now), err
}

func (s *postgres) read(ctx context.Context, fn func(querier, time.Time) error) error {
	return s.with(ctx, s.cold, fn)
}

func (s *postgres) with(ctx context.Context, pool *pgxpool.Pool, fn func(querier, time.Time) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	q := pgQuerier{conn}
	now, err := s.clock(ctx, q)
	if err != nil {
		return err
	}
	return fn(q, now)
}

// oldPromotionLockKey is the lock key of the version before the trigger promotions_gate. A writer
// takes this lock first, for a rolling upgrade from that version:
// docs/decisions/0017-promotion-lock.md.
func oldPromotionLockKey(p payouts.Promotion) int32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, p.String())
	return int32(h.Sum32())
}

// readCommitted sets the isolation level regardless of the defaults of role, database and DSN. A
// statement after a wait for a lock must see commits made during the wait.
func readCommitted() pgx.TxOptions { return pgx.TxOptions{IsoLevel: pgx.ReadCommitted} }

func (s *postgres) update(ctx context.Context, exclusive *payouts.Promotion, fn func(querier, time.Time) error) error {
	return s.commits.Do(func() error { return s.updateOnce(ctx, exclusive, fn) })
}

func (s *postgres) updateOnce(ctx context.Context, exclusive *payouts.Promotion, fn func(querier, time.Time) error) error {
	return pgx.BeginTxFunc(ctx, s.cold, readCommitted(), func(tx pgx.Tx) error {
		if exclusive != nil {
			if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+pgPromotionLockTimeout+"'"); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, pgOldPromotionLock, oldPromotionLockKey(*exclusive)); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, pgPromotionLock, string(exclusive.Type), exclusive.ID); err != nil {
				return err
			}
		}
		q := pgQuerier{tx}
		now, err := s.clock(ctx, q)
		if err != nil {
			return err
		}
		return fn(q, now)
	})
}

func stamp(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

var _ store = (*postgres)(nil)
