package ledger

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// postgres is the store on PostgreSQL. Effects have a pool of their own, whose sessions only use
// index scans and nested loops: docs/decisions/0019-forced-plans.md.
type postgres struct {
	hot  *pgxpool.Pool
	cold *pgxpool.Pool
	log  *slog.Logger
	skew *atomic.Int64

	commits       sqldb.Commits // of both pools
	batches       dueBatches
	effectsPerRow atomic.Int64 // see learnRows
}

const coldConnections = 4

// Time limits of one wait for a lock. Each is an SQL value.
const (
	pgLockTimeout      = "1s"
	pgGroupLockTimeout = "2s" // of a pause, resume or cancel, and of a sweep
)

func openPostgres(ctx context.Context, cfg Config, o Options) (*postgres, error) {
	s := &postgres{log: o.Log, skew: o.Skew}
	var err error
	if s.hot, err = s.newPool(ctx, cfg.DSN, cfg.Connections, "jit = off", "enable_seqscan = off", "enable_bitmapscan = off",
		"enable_hashjoin = off", "enable_mergejoin = off", "plan_cache_mode = force_generic_plan", "lock_timeout = '"+pgLockTimeout+"'"); err != nil {
		return nil, err
	}
	// Rare statements with an order must read an index in that order, and join by index probes.
	if s.cold, err = s.newPool(ctx, cfg.DSN, coldConnections, "jit = off", "enable_seqscan = off", "enable_bitmapscan = off", "enable_sort = off",
		"enable_hashjoin = off", "enable_mergejoin = off", "lock_timeout = '"+pgGroupLockTimeout+"'"); err != nil {
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

// newPool opens a pool whose sessions have the settings.
func (s *postgres) newPool(ctx context.Context, dsn setting.Secret, size int, settings ...string) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn.Reveal())
	if err != nil {
		return nil, fmt.Errorf("once: ledger: dsn: %w", err) // pgx omits the password
	}
	c.MaxConns, c.MinConns = int32(size), 0
	sqldb.TunePostgres(c.ConnConfig)
	c.BeforeConnect = sqldb.Renew(dsn, s.log)
	s.commits.Watch(c.ConnConfig)
	sqldb.Set(c.ConnConfig, settings...)
	c.MaxConnLifetime, c.MaxConnLifetimeJitter = min(c.MaxConnLifetime, sqldb.ConnLifetime), sqldb.ConnLifetime/5
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("once: ledger: postgres: %w", err)
	}
	return pool, nil
}

func (s *postgres) pools() []portable.Pool {
	return []portable.Pool{sqldb.PoolOf(poolEffects, s.hot), sqldb.PoolOf(poolReports, s.cold)}
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
	case pg.ConstraintName == constraintOfRecord || slices.Contains(pgCodesOfRecord(), pg.Code):
		return faultData
	}
	return faultOther
}

// constraintOfRecord is the only constraint that a record can break. The other constraints guard the
// ledger against itself.
const constraintOfRecord = "once_effects_payload_size"

// pgCodesOfRecord are the SQLSTATEs that the text of a record can cause, in a database whose encoding
// lacks one of its characters. Every other error of class 22 or 23 is about the state of the server:
// the record is good.
func pgCodesOfRecord() []string {
	const (
		characterNotInRepertoire = "22021"
		untranslatableCharacter  = "22P05"
	)
	return []string{characterNotInRepertoire, untranslatableCharacter}
}

// forgetChunk is the number of rows per transaction of forgetDue.
const forgetChunk = 1000

func (s *postgres) forgetDue(ctx context.Context) error {
	found := false
	if err := s.read(ctx, func(q querier, now time.Time) error {
		return q.query(ctx, func(scanner) error { found = true; return nil }, pgAnyEndedDue, now)
	}); err != nil || !found {
		return err
	}
	return s.update(ctx, groupLock{}, func(q querier, now time.Time) error {
		_, err := q.exec(ctx, pgForgetDue, now, forgetChunk)
		return err
	})
}

func (*postgres) dialect() portable.Dialect { return portable.Postgres }

func (*postgres) unsettled() string { return pgUnsettled }

func (s *postgres) now(t time.Time) time.Time { return t.UTC().Add(time.Duration(s.skew.Load())) }

func (s *postgres) skewMicros() int64 { return s.skew.Load() / int64(time.Microsecond) }

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

func (s *postgres) clock(ctx context.Context, q pgQuerier) (now time.Time, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan(&now) }, pgClock)
	return s.now(now), err
}

func (s *postgres) read(ctx context.Context, fn func(querier, time.Time) error) error {
	conn, err := s.cold.Acquire(ctx)
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

// readCommitted sets the isolation level regardless of the defaults of role, database and DSN. A
// statement after a wait for a lock must see commits made during the wait.
func readCommitted() pgx.TxOptions { return pgx.TxOptions{IsoLevel: pgx.ReadCommitted} }

// update also confirms, so that what fn only found is known to the synchronous standby.
func (s *postgres) update(ctx context.Context, lock groupLock, fn func(querier, time.Time) error) error {
	return s.commits.Do(func() error {
		return pgx.BeginTxFunc(ctx, s.cold, readCommitted(), func(tx pgx.Tx) error {
			if g := lock.exclusive; g != nil {
				if _, err := tx.Exec(ctx, pgGroupLock, g.kind, g.name); err != nil {
					return err
				}
			}
			if g := lock.shared; g != nil {
				if _, err := tx.Exec(ctx, pgShareGroupLocks, []int64{g.kind}, []string{g.name}); err != nil {
					return err
				}
			}
			q := pgQuerier{tx}
			now, err := s.clock(ctx, q)
			if err != nil {
				return err
			}
			if err := fn(q, now); err != nil {
				return err
			}
			_, err = tx.Exec(ctx, pgConfirm)
			return err
		})
	})
}

func (s *postgres) confirm(ctx context.Context) error {
	return s.commits.Do(func() error {
		_, err := s.cold.Exec(ctx, pgConfirm)
		return err
	})
}

func stamp(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

var _ store = (*postgres)(nil)
