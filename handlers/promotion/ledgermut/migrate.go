package ledger

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations
var migrationFiles embed.FS

func migrateUp(ctx context.Context, dialect goose.Dialect, folder string, db *sql.DB, locker lock.SessionLocker, log *slog.Logger) error {
	files, err := fs.Sub(migrationFiles, "migrations/"+folder)
	if err != nil {
		return err
	}
	opts := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true), goose.WithTableName("ledger_migrations"), goose.WithSlog(log)}
	if locker != nil {
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(dialect, db, files, opts...)
	if err != nil {
		return err
	}
	done, err := p.Up(ctx)
	if err != nil {
		return err
	}
	for _, m := range done {
		log.Info("ledger migrated", "version", m.Source.Version, "seconds", m.Duration.Seconds())
	}
	return nil
}

// schemaLocker lets one instance at a time migrate a schema. It waits in PostgreSQL's queue, where goose's own
// locker polls once a second at best; the lock dies with the session.
type schemaLocker struct{}

const schemaLockSQL = "(1296650050, hashtext(current_schema()))"

func (schemaLocker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock"+schemaLockSQL); err != nil {
		return fmt.Errorf("lock the schema: %w", err)
	}
	return nil
}

func (schemaLocker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock"+schemaLockSQL); err != nil {
		return fmt.Errorf("unlock the schema: %w", err)
	}
	return nil
}

var _ lock.SessionLocker = schemaLocker{}
