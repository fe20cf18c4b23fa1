package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Migrations are the tables of one owner, by version.
type Migrations struct {
	Name  string // in the log
	Files fs.FS  // goose's SQL files, in the folders migrations/postgres and migrations/sqlite
	Table string // keeps which versions ran; not to be changed once it is out
	Lock  int32  // PostgreSQL's advisory lock, with the schema's hash; not to be changed once it is out
}

// Up brings the tables up to date. Several instances may call it at once, and versions may differ: what a newer one
// has done an older one leaves alone.
func (m Migrations) Up(ctx context.Context, db *sql.DB, d Dialect, log *slog.Logger) error {
	if d == Postgres {
		return m.up(ctx, db, goose.DialectPostgres, d, log, goose.WithSessionLocker(schemaLock(m.Lock)))
	}
	// Each migration is one transaction, so whoever comes second meets a busy file, or what the first has made.
	return again(ctx, func(err error) bool { return err != nil }, func() error {
		return m.up(ctx, db, goose.DialectSQLite3, d, log)
	})
}

func (m Migrations) up(ctx context.Context, db *sql.DB, dialect goose.Dialect, d Dialect, log *slog.Logger, more ...goose.ProviderOption) error {
	files, err := fs.Sub(m.Files, "migrations/"+string(d))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(dialect, db, files,
		append(more, goose.WithDisableGlobalRegistry(true), goose.WithTableName(m.Table), goose.WithSlog(log))...)
	if err != nil {
		return err
	}
	done, err := p.Up(ctx)
	for _, r := range done {
		log.InfoContext(ctx, "tables migrated", "of", m.Name, "version", r.Source.Version, "seconds", r.Duration.Seconds())
	}
	var partial *goose.PartialError
	if errors.As(err, &partial) && partial.Failed != nil && partial.Failed.Source != nil {
		return fmt.Errorf("migration %s: %w", partial.Failed.Source.Path, err)
	}
	return err
}

// schemaLock lets one instance at a time migrate a schema. It waits in PostgreSQL's queue, where goose's own locker
// polls once a second at best; the lock dies with the session.
type schemaLock int32

var _ lock.SessionLocker = schemaLock(0)

func (l schemaLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1, hashtext(current_schema()))", int32(l)); err != nil {
		return fmt.Errorf("lock the schema: %w", err)
	}
	return nil
}

func (l schemaLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1, hashtext(current_schema()))", int32(l)); err != nil {
		return fmt.Errorf("unlock the schema: %w", err)
	}
	return nil
}
