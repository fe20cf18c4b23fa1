package ledger

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	deadstore "github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/setting"
	effects "github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// The SQL of the README has the rights to the ledger of effects as well, and may be repeated while instances run.
func TestTheRolesOfTheREADMEForEffects(t *testing.T) {
	t.Parallel()
	r, ctx := newRoles(t), t.Context()
	migrator := setting.NewSecret(r.dsn(t, "migrator"))
	for _, s := range []migration.Schema{
		Schema(Config{DSN: migrator}, "dsn", nil), deadstore.Schema(sqldb.Databases{}, migrator, "dsn", nil),
		effects.Schema(effects.Config{DSN: migrator}, "dsn", nil),
	} {
		_, err := s.Migrate(ctx)
		require.NoError(t, err)
	}
	open := func(role string) *effects.Ledger {
		cfg := effects.DefaultConfig()
		cfg.DSN = setting.NewSecret(r.dsn(t, role))
		l, err := effects.Open(ctx, cfg, effects.Options{Instance: role})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, l.CloseContext(context.Background())) })
		return l
	}
	r.exec(ctx, t, migrator.Reveal(), r.after)
	r.narrow(t, r.stores(t, "service")...)
	service := open("service")
	kind := effects.Kind{Name: "invoice", Results: true, Policy: rules.Policy{
		Repeat: rules.Never, MaxAttempts: 1, MaxReleased: 1, Lease: time.Minute, Delay: func(int) time.Duration { return 0 }, Instance: "a test",
	}}
	require.NoError(t, service.Register(ctx, kind))
	acme, by := effects.Group{Kind: "invoice", Name: "acme"}, effects.By{Who: "ann", Why: "x"}
	for i, outcome := range []rules.Outcome{rules.Done, rules.Rejected, rules.Unclear} { // what the service does
		r.exec(ctx, t, migrator.Reveal(), r.after)
		r.narrow(t, r.stores(t, "service")...)
		k := effects.Key{Kind: "invoice", Group: "acme", ID: string(rune('a' + i))}
		accepted, err := service.Accept(ctx, []effects.Record{{Key: k, Payload: []byte("{}")}})
		require.NoError(t, err)
		require.NoError(t, accepted[0].Err)
		_, err = service.Permit(ctx, "invoice", effects.Ask{Tokens: 1, Slots: 1})
		require.NoError(t, err)
		due, err := service.Due(ctx, "invoice")
		require.NoError(t, err)
		claimed, err := service.Claim(ctx, "invoice", due.Lanes[0], 10)
		require.NoError(t, err)
		require.Len(t, claimed, 1)
		settled, err := service.Settle(ctx, []effects.End{{Key: k, CallResult: rules.CallResult{Epoch: claimed[0].Epoch, Outcome: outcome, Receipt: "r"}}})
		require.NoError(t, err)
		require.NoError(t, settled[0].Err)
		require.NoError(t, service.SetActivity(ctx, "invoice", &effects.Activity{Reason: "away"}))
		require.NoError(t, service.SetActivity(ctx, "invoice", nil))
		require.NoError(t, service.FreeSlots(ctx, "invoice"))
		_, err = service.RelayResults(ctx, "invoice", 10, func(context.Context, []effects.Result) error { return nil })
		require.NoError(t, err)
		require.NoError(t, service.Sweep(ctx))
	}
	err := service.Pause(ctx, acme, by)
	requireDenied(t, err, "only an operator steers")
	require.Equal(t, 1, strings.Count(err.Error(), "Roles in PostgreSQL"), "the hint is said once: %s", err)

	operator := open("operator")
	require.NoError(t, operator.Register(ctx, kind))
	require.NoError(t, operator.Pause(ctx, acme, by))
	require.NoError(t, operator.Resume(ctx, acme, by))
	require.NoError(t, operator.PauseKind(ctx, "invoice", by))
	require.NoError(t, operator.ResumeKind(ctx, "invoice", by))
	require.NoError(t, operator.Resolve(ctx, effects.Key{Kind: "invoice", Group: "acme", ID: "c"}, rules.Resolution{Done: true, Receipt: "r", Who: "ann", Why: "x"}))
	_, err = operator.Cancel(ctx, acme, by)
	require.NoError(t, err)
	_, err = operator.Recover(ctx, "invoice", time.Now().Add(-time.Hour), by)
	require.NoError(t, err)
	status, err := open("reader").Status(ctx, acme)
	require.NoError(t, err)
	require.EqualValues(t, 3, status.Accepted)
	for _, role := range []string{"service", "operator", "reader"} {
		for _, sql := range []string{"UPDATE once_audit SET who = ''", "DELETE FROM once_audit", "UPDATE once_ledger SET id = 'x'", "UPDATE once_migrations SET version_id = 1"} {
			requireDenied(t, r.try(ctx, t, r.dsn(t, role), sql), role+": "+sql)
		}
	}
	requireDenied(t, r.try(ctx, t, r.dsn(t, "reader"), "DELETE FROM once_effects"), "a reader")
}
