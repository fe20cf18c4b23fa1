package ledger

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
)

// contracting matches statements that the version before cannot work with.
var contracting = regexp.MustCompile(`(?i)\b(DROP|RENAME|SET NOT NULL|ALTER COLUMN|TRUNCATE|DELETE|UPDATE)\b|ADD CONSTRAINT|NOT NULL(,|\s*$)`)

// expanding matches exceptions. Inserts of the version before name their columns. An index that is
// not unique refuses no row, and neither does the absence of an index or a unique key.
var expanding = regexp.MustCompile(`(?i)ALTER COLUMN \w+ SET DEFAULT|(CREATE|DROP) INDEX .*|DROP CONSTRAINT \w+_key`)

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
	require.Empty(t, contracts("-- +goose Up\nALTER TABLE payouts ALTER COLUMN a SET DEFAULT '';"))
	require.Empty(t, contracts("-- +goose Up\nALTER TABLE payouts ADD COLUMN a text NOT NULL DEFAULT '';"))
}

// The version before contains only its own migrations, and has nothing to do.
func TestTheVersionBeforeStartsOnThisSchema(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
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
		first, err := fs.ReadFile(migrationFiles, "migrations/"+folder+"/00001_ledger.sql")
		require.NoError(t, err)
		p, err := goose.NewProvider(dialect, db, fstest.MapFS{"00001_ledger.sql": {Data: first}},
			goose.WithDisableGlobalRegistry(true), goose.WithTableName("ledger_migrations"))
		require.NoError(t, err)
		done, err := p.Up(t.Context())
		require.NoError(t, err)
		require.Empty(t, done)
		mustAccept(t, l, record(1, 1))
	})
}

// Payouts can be partitioned by promotion: no unique key lacks it. The version before inserts its
// attempts with their key, so that one stays.
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
			WHERE i.indisunique AND c.relnamespace = current_schema()::regnamespace AND c.relname IN ('payouts', 'attempts', 'promotion_summaries')
				AND NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'promotion_id' AND a.attnum = ANY(i.indkey))`))
		require.Equal(t, []string{"attempts_pkey"}, without)
	})
}

// A begin of payouts in the stream writes no index.
func TestBeginIsAHeapOnlyUpdate(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		l := newPostgresDB(t).open(t)
		s := l.store.(*postgres)
		const payouts = 300
		acceptMany(t, l, 1, payouts)
		for target := range int64(payouts) {
			require.Equal(t, rules.Send, mustBegin(t, l, record(1, target+1)).Next)
		}
		require.Eventually(t, func() bool {
			var updated, heapOnly int
			require.NoError(t, s.cold.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
				WHERE schemaname = current_schema() AND relname = 'payouts'`).Scan(&updated, &heapOnly))
			return updated == payouts && heapOnly > payouts*9/10 // a few may find their page full
		}, time.Minute, 50*time.Millisecond)
	})
}
