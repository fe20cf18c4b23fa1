package letters

import (
	"context"
	"embed"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

//go:embed migrations
var migrationFiles embed.FS

// Migrate brings the tables up to date. It may be called by several instances at once.
func (s *Store) Migrate(ctx context.Context) error {
	m := sqldb.Migrations{Name: "dead letters", Files: migrationFiles, Table: "dead_letter_migrations", Lock: 1296650051}
	if err := m.Up(ctx, s.db, s.dialect, s.log); err != nil {
		return s.wrap("migrate", err)
	}
	return nil
}
