// Package portable is what a plugin needs whose tables are optional: values in both dialects of SQL,
// and a contract for the drivers. It has no driver, so a binary that stores nothing in tables
// requires neither PostgreSQL's driver nor SQLite.
//
// A plugin whose tables are not optional uses package sqldb.
package portable

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Dialect is the SQL dialect of a database. The zero value is none.
type Dialect string

// The dialects. Their names are also the folders of their migrations.
const (
	Postgres Dialect = "postgres"
	SQLite   Dialect = "sqlite"
)

// AnyOf returns the condition of a column that must be one of ids, and the argument of its placeholder.
func (d Dialect) AnyOf(placeholder string, ids []int64) (condition string, arg any) {
	if d == SQLite {
		list, _ := json.Marshal(ids) // numbers always encode
		return "IN (SELECT value FROM json_each(" + placeholder + "))", string(list)
	}
	return "= ANY(" + placeholder + ")", ids
}

// DialectOf returns the dialect of a DSN by its scheme, and "" for any other.
func DialectOf(dsn string) Dialect {
	switch {
	case strings.HasPrefix(dsn, "postgres://"), strings.HasPrefix(dsn, "postgresql://"):
		return Postgres
	case strings.HasPrefix(dsn, "sqlite:"):
		return SQLite
	}
	return ""
}

// Migrations are the tables of one owner, by version.
type Migrations struct {
	Name  string // for the log
	Files fs.FS  // goose's SQL files, in the folders migrations/postgres and migrations/sqlite
	Table string // of the versions that have run; never change it after a release
	// Lock is the key of PostgreSQL's advisory lock, with the hash of the schema. Never change it
	// after a release.
	Lock int32
	// Grants are what a service does with the tables. The check of the user in the DSN names what is missing.
	Grants []Grant
}

// Grant is a GRANT of PostgreSQL, of rights such as "INSERT, UPDATE" on tables such as "notes, tags".
type Grant struct{ Rights, On string }

// Databases opens databases by their DSN, and knows the errors of their drivers. sqldb.Databases is
// the one for PostgreSQL and SQLite.
type Databases interface {
	// CheckDSN checks the DSN of the setting at path. An empty one is accepted.
	CheckDSN(p *setting.Problems, path string, dsn setting.Secret)
	// Schema returns the tables of m in the database of dsn. setting is the path of the setting that
	// holds dsn, for errors; log may be nil.
	Schema(m Migrations, dsn setting.Secret, setting string, log *slog.Logger) migration.Schema
	// Open returns an open database, in which a transaction of SQLite begins as a writer. It opens no
	// connection to a server yet, and each connection has the credentials that dsn has at that moment.
	// The caller closes the database. With an error the database has only the name of its place, which
	// is empty if the DSN is wrong. log may be nil.
	Open(ctx context.Context, dsn setting.Secret, log *slog.Logger) (Database, error)
	// Await calls open until it succeeds or fails with another error than pipeline.ErrUnavailable. It
	// does not wait for a file that this process may not open, or on a read-only file system. An
	// error that ends the wait names the setting; the log names the database by name.
	Await(ctx context.Context, log *slog.Logger, name, setting string, open func() error) error
	// WhileContended repeats fn while Contended, a few times with growing pauses.
	WhileContended(ctx context.Context, fn func() error) error
	// Contended reports whether nothing happened because of another transaction.
	Contended(err error) bool
	// Unreachable reports whether the outcome of a statement may be unknown, because the database
	// can't be reached, can't write, or has not confirmed a commit. It may be repeated later.
	Unreachable(err error) bool
	// Repair says what an operator must do about a database that is there, and refuses a statement
	// because of its own state. ok is false for any other error.
	Repair(err error) (what string, ok bool)
}

// Database is an open database.
type Database struct {
	*sql.DB
	Dialect Dialect
	Where   string // its server or file, for errors
	// Commit commits a transaction. Its error says also that the server has not waited for its
	// synchronous standby.
	Commit func(*sql.Tx) error
}

// BehindTable says how to repair an identity column whose sequence gives numbers that the table has.
func BehindTable(table, column string) string {
	return fmt.Sprintf("the sequence of %[1]s.%[2]s is behind its table, as after a move by logical replication; set it: "+
		"SELECT setval(pg_get_serial_sequence('%[1]s', '%[2]s'), max(%[2]s)) FROM %[1]s", table, column)
}
