package promotion

import (
	"context"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// rolesTown is a schema whose roles are those of the ledger's README, under names of its own.
type rolesTown struct {
	t      *testing.T
	prefix string
	blocks []string // the SQL of the README
}

func newRolesTown(t *testing.T) *rolesTown {
	t.Helper()
	tier.Address(t, "postgres") // or the test is skipped
	text, err := os.ReadFile("ledger/README.md")
	require.NoError(t, err)
	rt := &rolesTown{t: t, prefix: "roles_" + strings.ToLower(ulid.Make().String())}
	for _, b := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		rt.blocks = append(rt.blocks, strings.ReplaceAll(b[1], "millrace", rt.prefix))
	}
	require.Len(t, rt.blocks, 2)
	require.NoError(t, rt.exec("", rt.blocks[0]))
	t.Cleanup(func() {
		drop := "DROP SCHEMA " + rt.prefix + " CASCADE;"
		for _, role := range []string{"migrator", "service", "operator", "reader"} {
			drop += "DROP OWNED BY " + rt.prefix + "_" + role + "; DROP ROLE " + rt.prefix + "_" + role + ";"
		}
		require.NoError(t, rt.exec("", drop))
	})
	return rt
}

// dsn is that of a role; empty: of the superuser.
func (rt *rolesTown) dsn(role string) string {
	rt.t.Helper()
	u, err := url.Parse(os.Getenv("MILLRACE_TEST_POSTGRES"))
	require.NoError(rt.t, err)
	q := u.Query()
	q.Set("search_path", rt.prefix)
	u.RawQuery = q.Encode()
	if role != "" {
		u.User = url.User(rt.prefix + "_" + role)
	}
	return u.String()
}

func (rt *rolesTown) exec(role, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, rt.dsn(role))
	require.NoError(rt.t, err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// schemas are those of the ledger and of the dead letters, as a role meets them.
func (rt *rolesTown) schemas(role string) []migration.Schema {
	rt.t.Helper()
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret(rt.dsn(role))
	return []migration.Schema{ledger.Schema(cfg, "dsn", nil), store.Schema(sqldb.Databases{}, cfg.DSN, "dsn", nil)}
}

// open opens the ledger and the dead letters as a role, on schemas that the policy accepts.
func (rt *rolesTown) open(role string, policy migration.Policy) (*ledger.Ledger, *store.Store) {
	rt.t.Helper()
	for _, s := range rt.schemas(role) {
		require.NoError(rt.t, policy.Prepare(rt.t.Context(), s, pipelinetest.Logger(rt.t)), role)
	}
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret(rt.dsn(role))
	l, err := ledger.Open(rt.t.Context(), cfg, ledger.Options{Instance: role, Lease: time.Minute}, nil)
	require.NoError(rt.t, err)
	rt.t.Cleanup(func() { require.NoError(rt.t, l.Close()) })
	s, err := store.Connect(rt.t.Context(), sqldb.Databases{}, cfg.DSN, nil)
	require.NoError(rt.t, err)
	rt.t.Cleanup(func() { require.NoError(rt.t, s.Close()) })
	return l, s
}

// The roles of the README can do their work, and not that of the others.
func TestTheRolesOfTheREADME(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		rt := newRolesTown(t)
		ctx := t.Context()
		for role, policy := range map[string]migration.Policy{"service": migration.RequireSchemas, "reader": migration.MatchSchemas} {
			for _, s := range rt.schemas(role) {
				var old *migration.Error
				require.ErrorAs(t, policy.Prepare(ctx, s, pipelinetest.Logger(t)), &old)
				_, err := s.Migrate(ctx)
				require.ErrorContains(t, err, "permission denied", role)
			}
		}
		for _, s := range rt.schemas("migrator") {
			_, err := s.Migrate(ctx)
			require.NoError(t, err)
		}
		require.NoError(t, rt.exec("migrator", rt.blocks[1]))
		service, copies := rt.open("service", migration.RequireSchemas)
		operator, work := rt.open("operator", migration.MatchSchemas)
		reader, _ := rt.open("reader", migration.MatchSchemas)

		rec := payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: 2}, SummaryID: 1, Payload: []byte("{}"), Route: "h"}
		require.NoError(t, service.Accept(ctx, []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
		require.NoError(t, service.Started(ctx, rec.OfPromotion(), 5))
		b, err := service.Begin(ctx, rec)
		require.NoError(t, err)
		s, err := service.Settle(ctx, payouts.CallResult{Key: rec.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Rejected, Class: "rejected", Route: "h"}})
		require.NoError(t, err)
		require.Equal(t, rules.Failed, s.State)
		n, err := service.Relay(ctx, ledger.OutboxDead, 10, func(context.Context, []ledger.OutboxMessage) error { return nil })
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.NoError(t, copies.Put(ctx, store.From("l1", "promotion", "t", "", pipeline.DeadLetter{Payload: []byte("{}"), FailedAt: time.Now()})))

		by := ledger.Steering{Who: "ann", Why: "a test"}
		require.ErrorContains(t, service.Pause(ctx, rec.OfPromotion(), by), "permission denied", "the service does not write the audit")
		require.NoError(t, operator.Pause(ctx, rec.OfPromotion(), by))
		require.NoError(t, operator.Resume(ctx, rec.OfPromotion(), by))
		done, err := operator.Replay(ctx, rec.Key, ledger.Replay{DeadLetter: "l1", Generation: 1, Who: "ann", Why: "a test"})
		require.NoError(t, err)
		require.Equal(t, ledger.ReplayDone, done.Outcome)
		require.NoError(t, work.Discard(ctx, "l1", store.By{Who: "ann", Why: "a test"}))
		finished := store.Filter{States: store.Finished(), Unchanged: time.Now().Add(time.Hour)}
		_, err = copies.Prune(ctx, finished, store.By{Who: "ann", Why: "a test"}, nil)
		require.ErrorContains(t, err, "permission denied", "the service deletes no dead letters")
		pruned, err := work.Prune(ctx, finished, store.By{Who: "ann", Why: "a test"}, nil)
		require.NoError(t, err)
		require.EqualValues(t, 1, pruned)

		id, err := service.ID(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, id)
		require.NoError(t, rt.exec("migrator", "REVOKE SELECT ON ledger_identity FROM "+rt.prefix+"_service"))
		_, err = service.ID(ctx)
		require.ErrorContains(t, err, "permission denied for table ledger_identity")
		require.ErrorContains(t, err, "Roles in PostgreSQL")

		c, err := reader.Status(ctx, rec.OfPromotion())
		require.NoError(t, err)
		require.EqualValues(t, 1, c.Accepted)
		require.ErrorContains(t, reader.Accept(ctx, []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err, "permission denied")
		lines, err := reader.Audit(ctx, rec.OfPromotion())
		require.NoError(t, err)
		require.Len(t, lines, 2)
		require.Equal(t, rt.prefix+"_operator", lines[0].DBUser)

		for _, role := range []string{"service", "operator", "reader"} {
			for _, sql := range []string{"UPDATE ledger_audit SET who = 'bob'", "DELETE FROM ledger_audit", "TRUNCATE ledger_audit", "DROP TABLE ledger_audit",
				"INSERT INTO ledger_audit (at, who, why, action, type, promotion_id, target_id, detail, db_user) VALUES (now(), 'a', 'b', 'c', 'POINT', 1, 1, 'd', 'bob')",
				"DELETE FROM payouts", "CREATE TABLE mine (a int)"} {
				require.Error(t, rt.exec(role, sql), "%s: %s", role, sql)
			}
		}
	})
}
