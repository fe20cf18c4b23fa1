package store

import (
	"embed"
	"log/slog"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

//go:embed migrations
var migrationFiles embed.FS

func migrations() sqldb.Migrations {
	return sqldb.Migrations{Name: "dead letters", Files: migrationFiles, Table: "dead_letter_migrations", Lock: 1296650051}
}

// Schema returns the tables in the database of dsn. setting is the path of the setting that holds
// dsn; log may be nil.
func Schema(dsn setting.Secret, setting string, log *slog.Logger) sqldb.Schema {
	return sqldb.Schema{Migrations: migrations(), DSN: dsn, Setting: setting, Log: log}
}
