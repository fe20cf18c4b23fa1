package store

import (
	"embed"
	"log/slog"

	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

//go:embed migrations
var migrationFiles embed.FS

func migrations() portable.Migrations {
	return portable.Migrations{Name: "dead letters", Files: migrationFiles, Table: "dead_letter_migrations", Lock: 1296650051, Grants: []portable.Grant{
		{Rights: "SELECT", On: "dead_letter_lock, dead_letter_migrations, dead_letter_prunes"},
		{Rights: "SELECT, INSERT, UPDATE", On: "dead_letter_actions, dead_letters"},
	}}
}

// Schema returns the tables in the database of dsn, which the drivers open. setting is the path of
// the setting that holds dsn; log may be nil.
func Schema(drivers portable.Databases, dsn setting.Secret, setting string, log *slog.Logger) migration.Schema {
	return drivers.Schema(migrations(), dsn, setting, log)
}
