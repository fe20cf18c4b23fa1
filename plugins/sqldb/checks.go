package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

const (
	remedyAway  = "start the database, or correct the DSN in the settings"
	runbookAway = "configs/RUNBOOK.md, MillraceLedgerSilent"
	rolesPage   = "handlers/promotion/ledger/README.md#roles-in-postgresql"

	// unprepared is an argument of a query. Behind a pooler of transactions a prepared statement may be in
	// another session, which would hide what the checks say.
	unprepared = pgx.QueryExecModeSimpleProtocol
)

// Examinations implements operate.Examined: the tables, and PostgreSQL itself. Stores in one database
// share the examination of the server.
func (s Schema) Examinations() []operate.Examination {
	migrations := operate.Examine{What: "migrations", Read: func(ctx context.Context) ([]operate.Check, error) {
		m, err := s.Plan(ctx)
		if err != nil {
			return nil, err
		}
		return []operate.Check{migrationsCheck(m)}, nil
	}}
	if portable.DialectOf(s.DSN.Reveal()) != portable.Postgres {
		return []operate.Examination{{Place: s.Name, Open: func(context.Context) ([]operate.Examine, func(), error) {
			return []operate.Examine{migrations}, nil, nil
		}}}
	}
	tables := operate.Examination{Place: s.Name, Remedy: remedyAway, Runbook: runbookAway, Open: s.examine(func(db *sql.DB) []operate.Examine {
		return []operate.Examine{migrations, one(db, "rights", s.readRights), one(db, "tables", readTables)}
	})}
	place := "postgres"
	if c, err := pgx.ParseConfig(s.DSN.Reveal()); err == nil {
		place = fmt.Sprintf("postgres %s at %s:%d", c.Database, c.Host, c.Port)
	}
	return []operate.Examination{tables, {Place: place, Remedy: remedyAway, Runbook: runbookAway, Open: s.examine(func(db *sql.DB) []operate.Examine {
		return []operate.Examine{
			one(db, "version", readVersion), one(db, "pooler", readPooler), one(db, "durability", readDurability),
			one(db, "connections", readConnections), one(db, "transactions", readTransactions),
			one(db, "clock", func(ctx context.Context, db *sql.DB) (operate.Check, error) {
				return operate.Clock(ctx, func(ctx context.Context) (now time.Time, err error) {
					err = db.QueryRowContext(ctx, "SELECT clock_timestamp()", unprepared).Scan(&now)
					return now, err
				})
			}),
		}
	})}}
}

// examine returns an Open that connects once, for the reason of a database that is away.
func (s Schema) examine(list func(*sql.DB) []operate.Examine) func(context.Context) ([]operate.Examine, func(), error) {
	return func(ctx context.Context) ([]operate.Examine, func(), error) {
		db, _, where, err := OpenPostgres(s.DSN, nil)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", s.Setting, err)
		}
		closeIt := func() { _ = db.Close() } // it was only read
		if err := db.PingContext(ctx); err != nil {
			closeIt()
			if refused(err) {
				err = fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
			}
			return nil, nil, s.fault(where, err)
		}
		return list(db), closeIt, nil
	}
}

func one(db *sql.DB, what string, read func(context.Context, *sql.DB) (operate.Check, error)) operate.Examine {
	return operate.Examine{What: what, Read: func(ctx context.Context) ([]operate.Check, error) {
		check, err := read(ctx, db)
		switch {
		case err != nil && Unreachable(err):
			return nil, fmt.Errorf("%w: %w", pipeline.ErrUnavailable, err)
		case err != nil:
			return nil, Explain(err)
		}
		return []operate.Check{check}, nil
	}}
}

func migrationsCheck(m migration.Migration) operate.Check {
	switch {
	case m.Newer():
		return operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("the database is at version %d, and this binary knows versions up to %d", m.Before, m.Known),
			Remedy: "use the newer binary, because the commands of this one refuse the tables",
		}
	case len(m.Steps) > 0:
		return operate.Check{
			Level: operate.Fail, Text: fmt.Sprintf("the database is at version %d, and this binary needs version %d", m.Before, m.Known),
			Remedy: "run the command migrate with these settings, as a database user who owns the tables",
		}
	}
	return operate.Check{Level: operate.OK, Text: fmt.Sprintf("version %d, up to date (%s, %s)", m.Before, m.Kind, m.Schema)}
}

const oldestPostgres = 13

func readVersion(ctx context.Context, db *sql.DB) (operate.Check, error) {
	var number int
	var text string
	err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')", unprepared).Scan(&number, &text)
	return versionCheck(number, text), err
}

func versionCheck(number int, text string) operate.Check {
	if number < oldestPostgres*10_000 {
		return operate.Check{Level: operate.Fail, Text: "PostgreSQL " + text, Remedy: fmt.Sprintf("upgrade to PostgreSQL %d or newer", oldestPostgres)}
	}
	return operate.Check{Level: operate.OK, Text: "PostgreSQL " + text}
}

// durability is what decides which commits a crash or a failover loses.
type durability struct {
	fsync, commit, names string // settings
	standbys             int    // that are connected
}

func readDurability(ctx context.Context, db *sql.DB) (operate.Check, error) {
	var d durability
	err := db.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('synchronous_commit'),
		current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication)`, unprepared).Scan(&d.fsync, &d.commit, &d.names, &d.standbys)
	return d.check(), err
}

func (d durability) check() operate.Check {
	switch {
	case d.fsync == "off":
		return operate.Check{Level: operate.Fail, Text: "fsync is off, so a crash of the machine destroys the database", Remedy: "set fsync to on"}
	case d.commit == "off":
		return operate.Check{
			Level: operate.Fail, Text: "synchronous_commit is off, so a crash loses commits that were confirmed, and payouts may be made again",
			Remedy: "set synchronous_commit to on, for the database or for the user of the DSN",
		}
	case d.names == "":
		return operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("%d standbys are connected, and none is synchronous, so a failover loses commits that were confirmed", d.standbys),
			Remedy: "add a standby and name it in synchronous_standby_names", Runbook: "docs/operating.md#data",
		}
	case d.commit == "local":
		return operate.Check{
			Level: operate.Warn, Text: "synchronous_commit is local, so a commit does not wait for the synchronous standby",
			Remedy: "set synchronous_commit to on",
		}
	case d.standbys == 0:
		return operate.Check{Level: operate.Fail, Text: "no standby is connected, and commits wait for " + d.names, Remedy: "repair the standby"}
	}
	return operate.Check{Level: operate.OK, Text: fmt.Sprintf("synchronous_commit is %s, and commits wait for %s", d.commit, d.names)}
}

// Shares of the connections that are open, in percent.
const (
	connectionsWarn = 80
	connectionsFail = 95
)

// connectionLimit is how many connections are open of how many.
type connectionLimit struct {
	used, limit int // limit -1: none
	of, remedy  string
}

func readConnections(ctx context.Context, db *sql.DB) (operate.Check, error) {
	list := []connectionLimit{
		{of: "of all clients", remedy: "raise max_connections, or run fewer instances"},
		{of: "of this database", remedy: "raise the limit by ALTER DATABASE … CONNECTION LIMIT, or run fewer instances"},
		{of: "of this user", remedy: "raise the limit by ALTER ROLE … CONNECTION LIMIT, or run fewer instances"},
	}
	all, database, user := &list[0], &list[1], &list[2]
	err := db.QueryRowContext(ctx, `SELECT (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database),
			current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
				- coalesce(current_setting('reserved_connections', true)::int, 0),
			(SELECT count(*) FROM pg_stat_activity WHERE datname = d.datname), d.datconnlimit,
			(SELECT count(*) FROM pg_stat_activity WHERE usename = r.rolname), r.rolconnlimit
		FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user`, unprepared).
		Scan(&all.used, &all.limit, &database.used, &database.limit, &user.used, &user.limit)
	return connectionsCheck(list...), err
}

// connectionsCheck judges by the limit that is nearest.
func connectionsCheck(list ...connectionLimit) operate.Check {
	c := operate.Check{Level: operate.OK}
	var texts []string
	nearest := 0
	for _, l := range list {
		if l.limit < 0 {
			continue
		}
		texts = append(texts, fmt.Sprintf("%d of %d are open, %s", l.used, l.limit, l.of))
		percent := l.used * 100 / max(l.limit, 1)
		if percent < connectionsWarn || percent <= nearest {
			continue
		}
		nearest, c.Level, c.Remedy = percent, operate.Warn, l.remedy
		if percent >= connectionsFail {
			c.Level = operate.Fail
		}
	}
	c.Text = strings.Join(texts, "; ")
	return c
}

// oldTransaction is how long a transaction may be open before it is a warning: the removal of dead
// rows waits for it, and so may a migration.
const oldTransaction = 15 * time.Minute

func readTransactions(ctx context.Context, db *sql.DB) (operate.Check, error) {
	var seconds float64
	var all bool
	err := db.QueryRowContext(ctx, `SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::float8,
		pg_has_role(current_user, 'pg_read_all_stats', 'MEMBER') FROM pg_stat_activity WHERE pid <> pg_backend_pid()`, unprepared).Scan(&seconds, &all)
	return transactionsCheck(time.Duration(seconds*float64(time.Second)), all), err
}

func transactionsCheck(oldest time.Duration, all bool) operate.Check {
	of := "of all users"
	if !all {
		of = "of this user; the role pg_read_all_stats shows those of others"
	}
	text := fmt.Sprintf("the oldest is open for %s (%s)", oldest.Round(time.Second), of)
	if oldest >= oldTransaction {
		return operate.Check{
			Level: operate.Warn, Text: text,
			Remedy: "find it in pg_stat_activity by xact_start and end it, because the removal of dead rows waits for it",
		}
	}
	return operate.Check{Level: operate.OK, Text: text}
}

// Rows that were replaced or deleted, and are still in a table.
const (
	deadRows    = 1_000_000
	deadPercent = 50 // of the live rows
)

// tableSize is a table of the schema.
type tableSize struct {
	name       string
	bytes      int64 // with indexes
	live, dead int64 // rows, as the statistics have them
}

func readTables(ctx context.Context, db *sql.DB) (operate.Check, error) {
	var list []tableSize
	err := portable.EachRow(ctx, db.QueryContext, func(row *sql.Rows) error {
		var t tableSize
		err := row.Scan(&t.name, &t.bytes, &t.live, &t.dead)
		list = append(list, t)
		return err
	}, `SELECT relname, pg_total_relation_size(relid), n_live_tup, n_dead_tup FROM pg_stat_user_tables
		WHERE schemaname = current_schema() ORDER BY 2 DESC, 1`, unprepared)
	return tablesCheck(list), err
}

const largestTables = 3

func tablesCheck(list []tableSize) operate.Check {
	var sum int64
	var largest []string
	for i, t := range list {
		if sum += t.bytes; i < largestTables {
			largest = append(largest, fmt.Sprintf("%s %d MiB (%d live and %d dead rows)", t.name, t.bytes>>20, t.live, t.dead))
		}
	}
	text := fmt.Sprintf("%d tables with %d MiB, with indexes", len(list), sum>>20)
	if len(largest) > 0 {
		text += "; the largest are " + strings.Join(largest, ", ")
	}
	for _, t := range list {
		if t.dead > deadRows && t.dead*100 > t.live*deadPercent {
			return operate.Check{
				Level: operate.Warn, Text: fmt.Sprintf("%s; %s has %d dead rows and %d live ones", text, t.name, t.dead, t.live),
				Remedy: "let autovacuum run on the table (autovacuum_vacuum_scale_factor), and end the transactions that hold it up",
			}
		}
	}
	return operate.Check{Level: operate.OK, Text: text}
}

var _ operate.Examined = Schema{}
