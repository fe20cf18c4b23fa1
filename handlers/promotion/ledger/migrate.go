package ledger

import (
	"embed"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

//go:embed migrations
var migrationFiles embed.FS

func migrations() sqldb.Migrations {
	return sqldb.Migrations{Name: "ledger", Files: migrationFiles, Table: "ledger_migrations", Lock: 1296650050}
}
