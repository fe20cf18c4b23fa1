package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// Schema has the tables of one owner in the database of a DSN. It implements migration.Schema.
type Schema struct {
	Migrations
	DSN     setting.Secret
	Setting string       // path of the setting of the DSN, for errors
	Log     *slog.Logger // nil: none
}

// migrationLock bounds a wait of a migration for a lock. Statements of other sessions queue behind
// it, so a long transaction, such as a backup, must not stop them. They continue between two tries.
const migrationLock = "lock_timeout = '2s'"

// Plan implements migration.Schema. It creates neither a file nor a table.
func (s Schema) Plan(ctx context.Context) (m migration.Migration, err error) {
	look := func() error {
		db, err := s.open(ctx, true)
		if err != nil {
			return err
		}
		m, err = s.plan(ctx, db)
		return errors.Join(err, db.Close())
	}
	if file, wrong := ParseFile(s.DSN.Reveal()); wrong == nil && portable.DialectOf(s.DSN.Reveal()) == portable.SQLite {
		err = file.undisturbed(look)
	} else {
		err = look()
	}
	return m, err
}

// Migrate implements migration.Schema. An up-to-date schema is only read.
func (s Schema) Migrate(ctx context.Context) (m migration.Migration, err error) {
	db, err := s.open(ctx, false)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	m, err = s.plan(ctx, db)
	if err != nil || len(m.Steps) == 0 {
		return m, err
	}
	m.Steps, err = s.runMigrations(ctx, db.DB, db.dialect, s.logger())
	if err != nil {
		m.After = m.Before
		if n := len(m.Steps); n > 0 {
			m.After = m.Steps[n-1].Version
		}
		return m, s.fault("migrate", err)
	}
	return m, nil
}

func (s Schema) logger() *slog.Logger { return cmp.Or(s.Log, slog.New(slog.DiscardHandler)) }

type database struct {
	*sql.DB
	dialect portable.Dialect
	path    string // of a file
}

// open waits for the database. With toRead it creates no file.
func (s Schema) open(ctx context.Context, toRead bool) (database, error) {
	return Await(ctx, s.logger(), s.Name, s.Setting, func() (database, error) {
		d := database{dialect: portable.DialectOf(s.DSN.Reveal())}
		switch d.dialect {
		case portable.Postgres:
			var where string
			var err error
			if d.DB, _, where, err = OpenPostgres(s.DSN, s.logger(), migrationLock); err != nil {
				return d, fmt.Errorf("%s: %w", s.Name, err)
			}
			if err := d.PingContext(ctx); err != nil {
				return d, s.fault(where, errors.Join(err, d.Close()))
			}
			return d, nil
		case portable.SQLite:
			file, err := ParseFile(s.DSN.Reveal())
			if err != nil {
				return d, fmt.Errorf("%s: %w", s.Name, err)
			}
			d.path = file.Path
			if toRead {
				d.DB, err = file.openToRead(ctx)
			} else {
				d.DB, err = file.Open(ctx, nil)
			}
			if err != nil {
				return d, s.fault("sqlite at "+file.Path, err)
			}
			return d, nil
		}
		return d, fmt.Errorf("%s: dsn must begin with postgres://, postgresql:// or sqlite: and name a database", s.Name)
	})
}

// plan reads which migrations have run.
func (s Schema) plan(ctx context.Context, db database) (migration.Migration, error) {
	m := migration.Migration{Store: s.Name, Kind: string(db.dialect)}
	p, err := s.provider(db.DB, db.dialect, s.logger())
	if err != nil {
		return m, s.fault("read the migrations", err)
	}
	done, schema, err := s.versions(ctx, db)
	if err != nil {
		return m, s.fault("read the schema's version", err)
	}
	m.Schema = schema
	for version := range done {
		m.Before = max(m.Before, version)
	}
	m.After = m.Before
	for _, source := range p.ListSources() {
		m.Known = max(m.Known, source.Version)
		if !done[source.Version] {
			m.Steps = append(m.Steps, migration.Step{Version: source.Version, Name: source.Path})
			m.After = max(m.After, source.Version)
		}
	}
	return m, nil
}

// versions returns the versions that have run (none without their table) and the name of the
// schema.
func (s Schema) versions(ctx context.Context, db database) (done map[int64]bool, schema string, err error) {
	var found bool
	switch db.dialect {
	case portable.Postgres:
		var name sql.NullString
		var role, path string
		err = db.QueryRowContext(ctx, "SELECT current_schema(), to_regclass($1) IS NOT NULL, current_user, current_setting('search_path')", s.Table).
			Scan(&name, &found, &role, &path)
		if err == nil && !name.Valid {
			err = fmt.Errorf("role %q sees no schema of the search_path %q: it does not exist, or the role has no right USAGE on it", role, path)
		}
		schema = name.String
	default:
		schema = db.path
		err = db.QueryRowContext(ctx, "SELECT count(*) > 0 FROM sqlite_schema WHERE name = $1", s.Table).Scan(&found)
	}
	if err != nil || !found {
		return nil, schema, err
	}
	done = map[int64]bool{}
	err = portable.EachRow(ctx, db.QueryContext, func(r *sql.Rows) error {
		var version int64
		err := r.Scan(&version)
		done[version] = true
		return err
	}, "SELECT version_id FROM "+s.Table)
	return done, schema, err
}

// fault adds the operation, and pipeline.ErrUnavailable if the database is unavailable.
func (s Schema) fault(what string, err error) error {
	if Unreachable(err) || Contended(err) {
		return fmt.Errorf("%s: %w: %s: %w", s.Name, pipeline.ErrUnavailable, what, err)
	}
	return fmt.Errorf("%s: %s: %w", s.Name, what, Explain(err))
}
