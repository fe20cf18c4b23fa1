package sqldb

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// PoolOf returns the state of p for metrics.
func PoolOf(name string, p *pgxpool.Pool) portable.Pool {
	now := p.Stat()
	return portable.Pool{
		Name: name, InUse: int(now.AcquiredConns()), Idle: int(now.IdleConns()), Limit: int(now.MaxConns()),
		Waits: now.EmptyAcquireCount(), Waited: now.EmptyAcquireWaitTime(),
	}
}

// MeasureTables reads the sizes of tables through a connection of p.
func MeasureTables(ctx context.Context, p *pgxpool.Pool, to *portable.Metrics, tables ...string) error {
	db := stdlib.OpenDBFromPool(p)
	defer func() { _ = db.Close() }() // the pool stays open
	return to.Measure(ctx, portable.Database{DB: db, Dialect: portable.Postgres}, tables...)
}
