package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	deadstore "github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// roles are those of the README, with names and a schema for this test.
type roles struct {
	name  string // of the schema, and the beginning of the roles' names
	admin string // the DSN of a superuser
	after string // the SQL for after each migration
}

// newRoles runs the README's SQL for a superuser.
func newRoles(t *testing.T) roles {
	t.Helper()
	r := roles{name: "roles_" + strings.ToLower(ulid.Make().String()), admin: tier.Address(t, "postgres")}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(readme), "\n## Roles in PostgreSQL\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.Len(t, blocks, 2)
	own := func(sql string) string { return regexp.MustCompile(`\bmillrace`).ReplaceAllString(sql, r.name) }
	r.after = own(blocks[1][1])
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		r.exec(ctx, t, r.admin, own("DROP SCHEMA millrace CASCADE; DROP OWNED BY millrace_migrator; "+
			"DROP ROLE millrace_migrator, millrace_service, millrace_operator, millrace_reader"))
	})
	r.exec(t.Context(), t, r.admin, own(blocks[0][1]))
	return r
}

// dsn returns the DSN of a role.
func (r roles) dsn(t *testing.T, role string) string {
	t.Helper()
	u, err := url.Parse(r.admin)
	require.NoError(t, err)
	u.User = url.User(r.name + "_" + role)
	q := u.Query()
	q.Set("search_path", r.name)
	u.RawQuery = q.Encode()
	return u.String()
}

func (roles) try(ctx context.Context, t *testing.T, dsn, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func (r roles) exec(ctx context.Context, t *testing.T, dsn, sql string) {
	t.Helper()
	require.NoError(t, r.try(ctx, t, dsn, sql))
}

// open opens the ledger as a role, without a migration.
func (r roles) open(t *testing.T, role string) *Ledger {
	t.Helper()
	cfg, opts := newTestDB(r.dsn(t, role)).config()
	once(&cfg, &opts)
	opts.OutcomeEvents = true
	l, err := Open(t.Context(), cfg, opts, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func requireDenied(t *testing.T, err error, what string) {
	t.Helper()
	var pg *pgconn.PgError
	require.ErrorAs(t, err, &pg, what)
	require.Equal(t, "42501", pg.Code, what)
}

// The SQL of the README gives each role the rights that it needs, and no others. A later migration
// stops no instance.
func TestTheRolesOfTheREADME(t *testing.T) {
	t.Parallel()
	r, ctx := newRoles(t), t.Context()
	migrator, service, operator, reader := r.dsn(t, "migrator"), r.dsn(t, "service"), r.dsn(t, "operator"), r.dsn(t, "reader")
	for _, s := range []migration.Schema{
		Schema(Config{DSN: setting.NewSecret(migrator)}, "dsn", nil), deadstore.Schema(sqldb.Databases{}, setting.NewSecret(migrator), "dsn", nil),
	} {
		_, err := s.Migrate(ctx)
		require.NoError(t, err)
	}
	promotion := payouts.Promotion{Type: "POINT", ID: 1}
	pay := func() { // what the service does
		l := r.open(t, "service")
		_, err := l.ID(ctx)
		require.NoError(t, err)
		require.NoError(t, l.CheckSequences(ctx))
		admitted, err := l.Admit(ctx, promotion)
		require.NoError(t, err)
		require.True(t, admitted)
		require.NoError(t, l.Started(ctx, promotion, 2))
		mustAccept(t, l, record(1, 1))
		mustAccept(t, l, record(1, 2))
		require.NoError(t, l.NotEnqueued(ctx, []payouts.Key{key(1, 1)})[0])
		leased, err := l.LeaseFeeder(ctx, promotion, time.Minute)
		require.NoError(t, err)
		require.True(t, leased)
		adopted, err := l.RecordIncarnation(ctx, promotion, "i")
		require.NoError(t, err)
		require.True(t, adopted)
		items, err := l.FeedUnqueued(ctx, promotion, 10)
		require.NoError(t, err)
		_, err = l.MarkEnqueued(ctx, promotion, "i", items)
		require.NoError(t, err)
		b := mustBegin(t, l, record(1, 1))
		mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "T"}})
		endPayout(t, l, record(1, 2), false)
		for _, kind := range []OutboxKind{OutboxOutcome, OutboxDead} {
			_, err = l.Relay(ctx, kind, 10, func(context.Context, []OutboxMessage) error { return nil })
			require.NoError(t, err)
		}
		_, err = l.Totals(ctx)
		require.NoError(t, err)
		requireDenied(t, l.Pause(ctx, promotion, Steering{Who: "ann", Why: "x"}), "only an operator steers")
	}
	work := func(role string, do func(s *deadstore.Store)) {
		s, err := deadstore.Connect(ctx, sqldb.Databases{}, setting.NewSecret(r.dsn(t, role)), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		do(s)
		require.NoError(t, s.Close())
	}
	r.exec(ctx, t, migrator, r.after)
	r.narrow(t, r.stores(t, "service")[:2]...)
	pay()
	var ids []string
	work("service", func(s *deadstore.Store) {
		for n := range 2 {
			l := deadstore.From("", "", "dead", fmt.Sprint(n), pipeline.DeadLetter{Handler: "a.b", Class: "rejected", Origin: fmt.Sprintf("a/0@%d", n)})
			require.NoError(t, s.Put(ctx, l))
			ids = append(ids, l.ID)
		}
		_, err := s.Tallies(ctx)
		require.NoError(t, err)
	})
	work("operator", func(s *deadstore.Store) {
		by := deadstore.By{Who: "ann", Why: "x"}
		require.NoError(t, s.Discard(ctx, ids[0], by))
		lease, err := s.Begin(ctx, ids[1], by, false)
		require.NoError(t, err)
		require.NoError(t, s.Finish(ctx, lease, deadstore.Outcome{Result: deadstore.OutcomeReplayed}))
		n, err := s.Prune(ctx, deadstore.Filter{States: deadstore.Finished(), Unchanged: time.Now().Add(time.Hour)}, by, nil)
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
	})
	l := r.open(t, "operator")
	require.NoError(t, l.Pause(ctx, promotion, Steering{Who: "ann", Why: "x"}))
	require.NoError(t, l.Resume(ctx, promotion, Steering{Who: "ann", Why: "x"}))
	_, err := l.Replay(ctx, key(1, 2), Replay{DeadLetter: "l", Generation: 1, Who: "ann", Why: "x"})
	require.NoError(t, err)

	for _, role := range []string{service, operator, reader} {
		r.exec(ctx, t, role, "SELECT FROM ledger_migrations, dead_letter_migrations")
		for _, sql := range []string{
			"UPDATE ledger_audit SET who = ''", "DELETE FROM ledger_audit", "INSERT INTO ledger_audit (db_user) VALUES ('bob')",
			"UPDATE ledger_identity SET id = 'x'", "DELETE FROM payouts", "UPDATE ledger_migrations SET version_id = 1",
			"UPDATE dead_letter_migrations SET version_id = 1", "DELETE FROM dead_letter_prunes", "CREATE TABLE own (n int)",
		} {
			requireDenied(t, r.try(ctx, t, role, sql), role+": "+sql)
		}
	}
	requireDenied(t, r.try(ctx, t, service, "INSERT INTO ledger_audit (who) VALUES ('ann')"), "the service")

	// The migration of a next version.
	r.exec(ctx, t, migrator, "CREATE TABLE later (n int)")
	r.exec(ctx, t, service, "INSERT INTO later VALUES (1)")
	r.exec(ctx, t, reader, "SELECT FROM later")
	requireDenied(t, r.try(ctx, t, reader, "INSERT INTO later VALUES (1)"), "a reader")
	r.exec(ctx, t, migrator, r.after)
	requireDenied(t, r.try(ctx, t, service, "INSERT INTO later VALUES (1)"), "the SQL does not name it")
}
