package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/url"

	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Databases has the drivers for PostgreSQL and SQLite. A binary gives it to a plugin whose tables are
// optional, such as deadletter.
type Databases struct{}

// CheckDSN implements portable.Databases.
func (Databases) CheckDSN(p *setting.Problems, path string, dsn setting.Secret) {
	CheckDSN(p, path, dsn)
}

// Schema implements portable.Databases.
func (Databases) Schema(m portable.Migrations, dsn setting.Secret, setting string, log *slog.Logger) migration.Schema {
	return Schema{Migrations: Migrations(m), DSN: dsn, Setting: setting, Log: log}
}

// Open implements portable.Databases.
func (Databases) Open(ctx context.Context, dsn setting.Secret, log *slog.Logger) (portable.Database, error) {
	d := portable.Database{Dialect: portable.DialectOf(dsn.Reveal()), Commit: (*sql.Tx).Commit}
	switch d.Dialect {
	case portable.Postgres:
		var commits *Commits
		var err error
		if d.DB, commits, d.Where, err = OpenPostgres(dsn, log); err != nil {
			return d, err
		}
		d.Commit = func(tx *sql.Tx) error { return commits.Do(tx.Commit) }
		return d, nil
	case portable.SQLite:
		file, err := ParseFile(dsn.Reveal())
		if err != nil {
			return d, err
		}
		d.Where = "sqlite at " + file.Path
		// A transaction that begins as a reader cannot wait for another writer later.
		d.DB, err = file.Open(ctx, url.Values{"_txlock": {"immediate"}})
		return d, err
	}
	return d, errors.New("dsn must begin with postgres://, postgresql:// or sqlite: and name a database")
}

// Await implements portable.Databases.
func (Databases) Await(ctx context.Context, log *slog.Logger, name, setting string, open func() error) error {
	_, err := Await(ctx, log, name, setting, func() (struct{}, error) { return struct{}{}, open() })
	return err
}

// WhileContended implements portable.Databases.
func (Databases) WhileContended(ctx context.Context, fn func() error) error {
	return whileContended(ctx, fn)
}

// Contended implements portable.Databases.
func (Databases) Contended(err error) bool { return Contended(err) }

// Unreachable implements portable.Databases.
func (Databases) Unreachable(err error) bool { return Unreachable(err) }

// Repair implements portable.Databases.
func (Databases) Repair(err error) (what string, ok bool) {
	why, ok := RefusalOf(err)
	if !ok {
		return "", false
	}
	return why.Repair(), true
}

var _ portable.Databases = Databases{}
