package ledger

import (
	"embed"
	"log/slog"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

//go:embed migrations
var migrationFiles embed.FS

func migrations() sqldb.Migrations {
	return sqldb.Migrations{Name: "once", Files: migrationFiles, Table: "once_migrations", Lock: 1296650057}
}

// Schema returns the tables of the ledger of cfg. setting is the path of the DSN setting, for errors.
// log may be nil.
func Schema(cfg Config, setting string, log *slog.Logger) sqldb.Schema {
	return sqldb.Schema{Migrations: migrations(), DSN: cfg.DSN, Setting: setting, Log: log}
}
