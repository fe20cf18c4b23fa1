package ledger

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// contracting matches statements that the version before cannot work with.
var contracting = regexp.MustCompile(`(?i)\b(DROP|RENAME|SET NOT NULL|ALTER COLUMN|TRUNCATE|DELETE|UPDATE)\b|ADD CONSTRAINT|NOT NULL(,|\s*$)`)

// expanding matches exceptions. Inserts of the version before name their columns. An index that is
// not unique refuses no row. An index or key that is dropped is named here, with its replacement:
//   - payouts_unsettled: payouts_feed serves the queries of both versions, and the version before
//     sorts its result.
//   - payouts_id_key: no statement of the version before needs a unique id, and payouts_id remains.
var expanding = regexp.MustCompile(`(?i)ALTER COLUMN \w+ SET DEFAULT|CREATE INDEX .*|DROP INDEX payouts_unsettled|DROP CONSTRAINT payouts_id_key`)

func contracts(migration string) string {
	up, _, _ := strings.Cut(migration, "-- +goose Down")
	for _, statement := range strings.Split(strings.ReplaceAll(up, "BEFORE UPDATE OF", ""), ";") {
		if !strings.Contains(statement, "CREATE TABLE") { // a new table may be strict
			if found := contracting.FindString(expanding.ReplaceAllString(statement, "")); found != "" {
				return found
			}
		}
	}
	return ""
}

var comments = regexp.MustCompile(`(?m)^--.*\n`)

// Version N runs on the same database as N+1, and the statements of a released migration are never
// edited.
func TestMigrationsOnlyExpand(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"postgres": "1cbe8f82f3058c1d648371cc224bacc0a0f7a6db3aede0c46396f8c11576ab1e", "sqlite": "6b9303cb97026ba9dc45aac93353e4e4d8be74fa437136d1afb8c0a14a48a21a"} {
		first, err := fs.ReadFile(migrationFiles, "migrations/"+name+"/00001_ledger.sql")
		require.NoError(t, err)
		sum := sha256.Sum256(comments.ReplaceAll(first, nil))
		require.Equal(t, want, hex.EncodeToString(sum[:]), "%s: the first migration was edited", name)
		files, err := fs.Glob(migrationFiles, "migrations/"+name+"/*.sql")
		require.NoError(t, err)
		require.Greater(t, len(files), 1)
		for _, f := range files[1:] {
			b, err := fs.ReadFile(migrationFiles, f)
			require.NoError(t, err)
			require.Empty(t, contracts(string(b)), f)
			require.Contains(t, string(b), "-- The version before may run on these tables.", f)
		}
	}
	require.Equal(t, "DROP", contracts("-- +goose Up\nALTER TABLE payouts DROP COLUMN origin;"), "the check can fail")
	require.NotEmpty(t, contracts("-- +goose Up\nALTER TABLE payouts ADD COLUMN a text NOT NULL;"))
	require.Empty(t, contracts("-- +goose Up\nCREATE INDEX i ON payouts (a) WHERE a IS NOT NULL;"))
	require.NotEmpty(t, contracts("-- +goose Up\nALTER TABLE payouts ALTER COLUMN a TYPE bigint;"))
	require.Equal(t, "DROP", contracts("-- +goose Up\nDROP INDEX payouts_feed;"))
	require.Empty(t, contracts("-- +goose Up\nALTER TABLE payouts ALTER COLUMN a SET DEFAULT '';"))
	require.Empty(t, contracts("-- +goose Up\nALTER TABLE payouts ADD COLUMN a text NOT NULL DEFAULT '';"))
}

// goose returns the database of a ledger, and its migrations in files.
func (l *Ledger) goose(t *testing.T, files fs.FS) (*sql.DB, *goose.Provider) {
	t.Helper()
	var db *sql.DB
	folder, dialect := "sqlite", goose.DialectSQLite3
	switch s := l.store.(type) {
	case *sqliteStore:
		db = s.writer
	case *postgres:
		folder, dialect = "postgres", goose.DialectPostgres
		db = stdlib.OpenDBFromPool(s.cold)
		t.Cleanup(func() { _ = db.Close() })
	}
	files, err := fs.Sub(files, "migrations/"+folder)
	require.NoError(t, err)
	p, err := goose.NewProvider(dialect, db, files, goose.WithDisableGlobalRegistry(true), goose.WithTableName("ledger_migrations"))
	require.NoError(t, err)
	return db, p
}

// The version before contains only its own migrations, and has nothing to do.
func TestTheVersionBeforeStartsOnThisSchema(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		first := fstest.MapFS{}
		for _, f := range []string{"migrations/postgres/00001_ledger.sql", "migrations/sqlite/00001_ledger.sql"} {
			b, err := fs.ReadFile(migrationFiles, f)
			require.NoError(t, err)
			first[f] = &fstest.MapFile{Data: b}
		}
		_, p := l.goose(t, first)
		done, err := p.Up(t.Context())
		require.NoError(t, err)
		require.Empty(t, done)
		mustAccept(t, l, record(1, 1))
	})
}

// sqlSchema lists columns, keys, indexes, triggers and functions, by name.
var sqlSchema = map[bool]string{
	true: `SELECT concat_ws(' ', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
		FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
	UNION ALL SELECT concat_ws(' ', relname, reloptions) FROM pg_class WHERE relnamespace = current_schema()::regnamespace
	UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()
	UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = current_schema()::regnamespace
	UNION ALL SELECT pg_get_triggerdef(t.oid) FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid WHERE c.relnamespace = current_schema()::regnamespace
	UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY 1`,
	false: `SELECT concat_ws(' ', m.name, x.name, x.type, x."notnull", x.dflt_value, x.hidden) FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS x WHERE m.type = 'table'
	UNION ALL SELECT coalesce(sql, name) FROM sqlite_master WHERE type <> 'table' ORDER BY 1`,
}

// The way back of each migration restores the tables before it, and keeps the rows.
func TestMigrationsDown(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		payMany(t, l, 1, 3)
		mustAccept(t, l, record(1, 4))
		db, p := l.goose(t, migrationFiles)
		read := func(query string) (all []string) {
			rows, err := db.QueryContext(t.Context(), query)
			require.NoError(t, err)
			defer func() { require.NoError(t, rows.Close()) }()
			for rows.Next() {
				var line string
				require.NoError(t, rows.Scan(&line))
				all = append(all, line)
			}
			require.NoError(t, rows.Err())
			return all
		}
		_, postgres := l.store.(*postgres)
		var schemas [][]string
		sources := p.ListSources()
		for i := range sources {
			schemas = append(schemas, read(sqlSchema[postgres]))
			if i == len(sources)-1 {
				require.Len(t, read("SELECT payout_id FROM attempts"), 3)
				require.Len(t, read("SELECT id FROM payouts"), 4)
			}
			_, err := p.Down(t.Context())
			require.NoError(t, err)
		}
		for i, schema := range slices.Backward(schemas) {
			_, err := p.UpByOne(t.Context())
			require.NoError(t, err)
			require.Equal(t, read(sqlSchema[postgres]), schema, "on the way back to %s", sources[len(sources)-1-i].Path)
		}
	})
}

// Payouts and attempts can be partitioned by promotion: no unique key of theirs lacks it. The other
// tables without it here are small, or a queue: docs/decisions/0024-keys-with-the-promotion.md.
func TestUniqueKeysContainThePromotion(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		s := newPostgresDB(t).open(t).store.(*postgres)
		var without []string
		require.NoError(t, pgQuerier{s.cold}.query(t.Context(), func(r scanner) error {
			var index string
			err := r.Scan(&index)
			without = append(without, index)
			return err
		}, `SELECT i.indexrelid::regclass::text FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
			WHERE i.indisunique AND c.relnamespace = current_schema()::regnamespace
				AND NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'promotion_id' AND a.attnum = ANY(i.indkey))`))
		require.ElementsMatch(t, []string{
			"attempts_pkey", // rows of versions before migration 9
			"outbox_pkey", "outbox_dedupe_key", "ledger_audit_pkey", "ledger_replays_pkey", "ledger_identity_pkey", "ledger_migrations_pkey",
		}, without)
	})
}

// The version before writes its attempts to another table. Both are read.
func TestAttemptsOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		mustAccept(t, l, record(1, 1))
		b := mustBegin(t, l, record(1, 1))
		for range 2 {
			_, err := conn.Exec(t.Context(), `INSERT INTO attempts (payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status)
				SELECT id, 0, FALSE, 0, 'send', 'z', accepted_at, accepted_at, 'paid', '', 'first', 200 FROM payouts ON CONFLICT (payout_id, epoch, late) DO NOTHING`)
			require.NoError(t, err)
		}
		mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Rejected, Answer: "second"}})
		calls := mustExplain(t, l, key(1, 1)).Calls
		require.Len(t, calls, 2)
		require.Equal(t, []string{"first", "second"}, []string{calls[0].Answer, calls[1].Answer})
		require.NoError(t, l.read(t.Context(), "paid", func(q querier, _ time.Time) error {
			answer, err := paidAttempt(t.Context(), q, 1)
			require.Equal(t, "first", answer)
			return err
		}))
	})
}

// A begin of payouts in the stream writes no index.
func TestBeginIsAHeapOnlyUpdate(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		l := newPostgresDB(t).open(t)
		s := l.store.(*postgres)
		const total = 300
		acceptMany(t, l, 1, total)
		for target := range int64(total) {
			require.Equal(t, rules.Send, mustBegin(t, l, record(1, target+1)).Next)
		}
		require.Eventually(t, func() bool {
			var updated, heapOnly int
			require.NoError(t, s.cold.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
				WHERE schemaname = current_schema() AND relname = 'payouts'`).Scan(&updated, &heapOnly))
			return updated == total && heapOnly > total*9/10 // a few may find their page full
		}, 2*time.Minute, 50*time.Millisecond)
	})
}
