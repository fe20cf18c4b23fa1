package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	deadstore "github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
	effects "github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// stores are the tables of all stores, with the DSN of a role.
func (r roles) stores(t *testing.T, role string) []sqldb.Schema {
	t.Helper()
	dsn := setting.NewSecret(r.dsn(t, role))
	letters, ok := deadstore.Schema(sqldb.Databases{}, dsn, "dsn", nil).(sqldb.Schema)
	require.True(t, ok)
	return []sqldb.Schema{Schema(Config{DSN: dsn}, "dsn", nil), letters, effects.Schema(effects.Config{DSN: dsn}, "dsn", nil)}
}

// narrow leaves the service the rights that stores say it needs, and not those which the SQL of the README adds for
// another version.
func (r roles) narrow(t *testing.T, stores ...sqldb.Schema) {
	t.Helper()
	sql := fmt.Sprintf("REVOKE ALL ON ALL TABLES IN SCHEMA %[1]s FROM %[1]s_service;", r.name)
	for _, s := range stores {
		for _, g := range s.Grants {
			sql += fmt.Sprintf("GRANT %s ON %s TO %s_service;", g.Rights, g.On, r.name)
		}
	}
	r.exec(t.Context(), t, r.dsn(t, "migrator"), sql)
}

// rightsOf returns what doctor says about the rights of a role.
func rightsOf(t *testing.T, s sqldb.Schema) operate.Check {
	t.Helper()
	for _, c := range operate.Diagnose(t.Context(), s.Examinations()[:1], 2*time.Minute, nil).Checks {
		if c.Name == s.Name+" rights" {
			return c
		}
	}
	require.Fail(t, "no rights")
	return operate.Check{}
}

// With the roles of the README doctor misses nothing, and whatever is taken from the service it names with the
// GRANT that repairs it.
func TestDoctorKnowsTheRightsOfTheService(t *testing.T) {
	t.Parallel()
	r, ctx := newRoles(t), t.Context()
	migrator := r.dsn(t, "migrator")
	for _, s := range r.stores(t, "migrator") {
		_, err := s.Migrate(ctx)
		require.NoError(t, err)
	}
	r.exec(ctx, t, migrator, r.after)
	for _, s := range r.stores(t, "reader") {
		c := rightsOf(t, s)
		require.Equal(t, operate.Warn, c.Level, c)
		require.Contains(t, c.Text, "may only read")
	}
	for _, s := range r.stores(t, "service") {
		c := rightsOf(t, s)
		require.Equal(t, operate.OK, c.Level, c)
		require.NotEmpty(t, s.Grants)
		for _, g := range s.Grants {
			r.exec(ctx, t, migrator, fmt.Sprintf("REVOKE %s ON %s FROM %s_service", g.Rights, g.On, r.name))
			c := rightsOf(t, s)
			require.Equal(t, operate.Fail, c.Level, c)
			for right := range strings.SplitSeq(g.Rights, ", ") {
				require.Regexp(t, right+" on [^;]*\\b"+strings.ReplaceAll(g.On, ", ", "\\b[^;]*\\b")+"\\b", c.Text)
			}
			_, grants, _ := strings.Cut(c.Remedy, ": ")
			r.exec(ctx, t, migrator, grants)
			c = rightsOf(t, s)
			require.Equal(t, operate.OK, c.Level, c)
		}
	}
}

// A service that has only effects has no ledger of payouts, and perhaps its dead letters elsewhere.
func TestTheRolesOfTheREADMEForEachStoreAlone(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		r, ctx := newRoles(t), t.Context()
		alone := r.stores(t, "migrator")[i]
		require.Contains(t, rightsOf(t, alone).Text, "there are no tables yet")
		r.exec(ctx, t, r.dsn(t, "migrator"), r.after)
		_, err := alone.Migrate(ctx)
		require.NoError(t, err)
		r.exec(ctx, t, r.dsn(t, "migrator"), r.after)
		c := rightsOf(t, r.stores(t, "service")[i])
		require.Equal(t, operate.OK, c.Level, c)
		require.Regexp(t, `has the [1-9]\d* rights`, c.Text)
	}
}

// A right that the service has lost is known without the log, and what a person was refused is not mixed with it.
func TestAMissingRightIsKnown(t *testing.T) {
	t.Parallel()
	r, ctx := newRoles(t), t.Context()
	for _, s := range r.stores(t, "migrator") {
		_, err := s.Migrate(ctx)
		require.NoError(t, err)
	}
	r.exec(ctx, t, r.dsn(t, "migrator"), r.after)
	l := r.open(t, "service")
	mustAccept(t, l, record(1, 1))
	requireDenied(t, l.Pause(ctx, payouts.Promotion{Type: "POINT", ID: 1}, Steering{Who: "ann", Why: "x"}), "only an operator steers")
	_, refused := l.Refused(time.Now())
	require.False(t, refused)
	for i, sql := range []string{"REVOKE UPDATE ON payouts FROM " + r.name + "_service", "REVOKE UPDATE ON promotion_streams FROM " + r.name + "_service"} {
		r.exec(ctx, t, r.dsn(t, "migrator"), sql)
		_, err := l.Begin(ctx, record(1, 1))
		requireDenied(t, err, sql)
		_, err = l.LeaseFeeder(ctx, payouts.Promotion{Type: "POINT", ID: 1}, time.Minute)
		require.Equal(t, i == 1, err != nil)
	}
	c, refused := l.Refused(time.Now())
	require.True(t, refused)
	require.Equal(t, operate.Fail, c.Level)
	require.Contains(t, c.Text, ": begin: ERROR: permission denied for table payouts (SQLSTATE 42501); lease feeder: ERROR: permission denied for table promotion_streams (SQLSTATE 42501)")
	require.Contains(t, c.Remedy, "the migrator's to change tables, an operator's for a command that changes something")
	require.Contains(t, c.Remedy, "doctor prints the GRANT that a service lacks")
}
