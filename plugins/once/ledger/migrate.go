package ledger

import (
	"embed"
	"log/slog"

	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

//go:embed migrations
var migrationFiles embed.FS

func migrations() sqldb.Migrations {
	return sqldb.Migrations{Name: "once", Files: migrationFiles, Table: "once_migrations", Lock: 1296650057, Grants: []portable.Grant{
		{Rights: "SELECT", On: "once_audit, once_ledger, once_lost, once_migrations, once_paused"},
		{Rights: "SELECT, INSERT", On: "once_attempts"},
		{Rights: "SELECT, INSERT, UPDATE", On: "once_effects, once_groups, once_kinds, once_limits, once_totals"},
		{Rights: "SELECT, INSERT, UPDATE, DELETE", On: "once_deltas, once_due, once_instances, once_problems, once_results, once_slots"},
	}}
}

// Schema returns the tables of the ledger of cfg. setting is the path of the DSN setting, for errors.
// log may be nil.
func Schema(cfg Config, setting string, log *slog.Logger) sqldb.Schema {
	return sqldb.Schema{Migrations: migrations(), DSN: cfg.DSN, Setting: setting, Log: log}
}
