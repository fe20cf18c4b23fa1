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
	return sqldb.Migrations{Name: "ledger", Files: migrationFiles, Table: "ledger_migrations", Lock: 1296650050, Grants: []portable.Grant{
		{Rights: "SELECT", On: "attempts, ledger_audit, ledger_identity, ledger_migrations, ledger_replays"},
		{Rights: "SELECT, INSERT, UPDATE", On: "payouts, promotion_streams, promotion_summaries, promotions"},
		{Rights: "SELECT, INSERT", On: "payout_attempts"},
		{Rights: "SELECT, INSERT, UPDATE, DELETE", On: "outbox, promotion_summary_slots"},
	}}
}

// Schema returns the tables of the ledger of cfg. setting is the path of the DSN setting. log may
// be nil.
func Schema(cfg Config, setting string, log *slog.Logger) sqldb.Schema {
	return sqldb.Schema{Migrations: migrations(), DSN: cfg.DSN, Setting: setting, Log: log}
}
