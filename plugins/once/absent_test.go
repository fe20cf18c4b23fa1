package once_test

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// A kind that was removed from the settings with open effects is no silence: the start, the doctor and the
// commands say so.
func TestAKindThatWasRemovedIsMissed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		notYet := func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(func() bool { return false }) }
		p := newInvoices(w.Once, once.ByKey, notYet)
		stop := w.StartUntil(p)
		_, err := p.effects.Enqueue(t.Context(), one, invoice{Customer: "acme", Number: "18"})
		require.NoError(t, err)
		require.NoError(t, stop())

		dsn := w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
		receipt := func(k *once.Kind[invoice], _ *once.KindConfig) { k.Name = "receipt" }
		diagnose := func(change func(*once.Kind[invoice], *once.KindConfig)) operate.Check {
			o := oncetest.On(t, dsn).Once
			plugins := []pipeline.Plugin{o}
			if change != nil {
				plugins = append(plugins, newInvoices(o, once.ByKey, change))
			} else {
				newInvoices(o, once.ByKey, nil) // its plugin is switched off
			}
			reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, plugins...)
			require.NoError(t, err)
			for _, c := range operate.Diagnose(t.Context(), operate.Examinations(reg), time.Minute, nil).Checks {
				if c.Name == "effects kinds" {
					return c
				}
			}
			return operate.Check{}
		}
		for _, change := range []func(*once.Kind[invoice], *once.KindConfig){receipt, nil} {
			c := diagnose(change)
			require.Equal(t, operate.Warn, c.Level, c.String())
			require.Equal(t, "open effects of kinds that this program does not have: invoice (2)", c.Text)
		}
		require.Equal(t, operate.OK, diagnose(notYet).Level)

		started := func(change func(*once.Kind[invoice], *once.KindConfig)) (logged string) {
			o := oncetest.On(t, dsn).Once
			var log bytes.Buffer
			reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "b", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}, o, newInvoices(o, once.ByKey, change))
			require.NoError(t, err)
			rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
			require.NoError(t, rt.Start(t.Context()))
			require.NoError(t, rt.Stop(t.Context()))
			return log.String()
		}
		require.Regexp(t, `effects of a kind that this program does not have.* kind=invoice open=2`, started(receipt))
		require.NotContains(t, started(notYet), "does not have")

		note := "This program does not have the kind invoice, of which 2 effects are open: unless another one has it, nothing calls for them."
		o := command(t, w, receipt)
		require.Equal(t, []string{note}, o.must("once", operate.Input{"limit": {"50"}}).Notes)
		require.Contains(t, o.must("once status", input("")).Notes, note)
		require.Empty(t, command(t, w, nil).must("once", operate.Input{"limit": {"50"}}).Notes)
	})
}

// A ledger that a program without a kind does not use is no finding, also when it is not there.
func TestTheLedgerOfNobodyIsNotMissed(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://nobody@127.0.0.1:1/none?sslmode=disable", "sqlite:" + t.TempDir() + "/none.db"} {
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, oncetest.On(t, dsn).Once)
		require.NoError(t, err)
		d := operate.Diagnose(t.Context(), operate.Examinations(reg), time.Minute, nil)
		require.Equal(t, operate.Diagnosis{Away: []string{}, Checks: []operate.Check{}}, d)
	}
}

// Tables that a program with kinds has not made yet were not searched, which is not in order.
func TestALedgerWithoutTablesIsNotInOrder(t *testing.T) {
	t.Parallel()
	o := oncetest.On(t, "sqlite:"+t.TempDir()+"/none.db").Once
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, o, newInvoices(o, once.ByKey, nil))
	require.NoError(t, err)
	for _, c := range operate.Diagnose(t.Context(), operate.Examinations(reg), time.Minute, nil).Checks {
		if c.Name == "effects kinds" {
			require.Equal(t, operate.Warn, c.Level, c.String())
			require.Contains(t, c.Text, "not examined, because the tables are not up to date")
			return
		}
	}
	require.FailNow(t, "no check")
}

// A kind that nobody has is a mistake in the command, which none of them answers as if there were no effects. One of
// another program is none.
func TestAKindThatNobodyHas(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, one.key())

		o := operator{t, w}
		in := input("17", "kind", "nope", "record", "{}", "since", "2026-01-01T00:00:00Z", "in-flight", "1", "not-done", "true")
		asked := 0
		refused := func(name string, fields []operate.Field) {
			if !slices.ContainsFunc(fields, func(f operate.Field) bool { return f.Name == "kind" }) {
				return
			}
			asked++
			_, err := o.ask(name, in)
			var wrong *operate.InputError
			require.ErrorAs(t, err, &wrong, name)
			require.Equal(t, `neither this program nor the ledger has the kind "nope"; this program has invoice`, wrong.Problem, name)
			require.Equal(t, "kind", wrong.Field)
		}
		for _, r := range w.Once.Operations().Reports {
			refused(r.Name, r.Fields)
		}
		for _, a := range w.Once.Operations().Actions {
			refused(a.Name, a.Fields)
		}
		require.GreaterOrEqual(t, asked, 12)

		other := command(t, w, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Name = "receipt" })
		require.NotEmpty(t, other.must("once", input("")).Tables[0].Rows)
	})
}

// An attempt after the time of the key is not made, so a key that ends before the retries is probably a mistake.
func TestAKeyThatEndsBeforeTheRetriesIsWarnedOf(t *testing.T) {
	t.Parallel()
	warned := func(r once.Repeat, ttl time.Duration) (found []operate.Check) {
		o := oncetest.On(t, "sqlite:"+t.TempDir()+"/none.db").Once
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, o, newInvoices(o, r, func(_ *once.Kind[invoice], c *once.KindConfig) { c.KeyTTL = ttl }))
		require.NoError(t, err)
		for _, c := range operate.Diagnose(t.Context(), operate.Examinations(reg), time.Minute, nil).Checks {
			if c.Name == "effects keys" {
				found = append(found, c)
			}
		}
		return found
	}
	const longest = (1+2+4+8+16)*time.Second + 5*3*time.Second
	found := warned(once.ByKey, longest)
	require.Len(t, found, 1)
	require.Equal(t, operate.Warn, found[0].Level)
	require.Equal(t, "the kind invoice has a key_ttl of 46s, and its 5 retries may last 46s (retry, call_timeout): later ones are not sent", found[0].Text)
	require.Empty(t, warned(once.ByKey, longest+time.Second))
	require.Empty(t, warned(once.ByLookup, longest), "it has no key")
}

// A database that refuses the password is one failure with a remedy, and not one more for all that could not be examined.
func TestALedgerThatCanNotBeOpenedIsSaidOnce(t *testing.T) {
	t.Parallel()
	o := oncetest.On(t, "postgres://nobody@127.0.0.1:1/nothing?sslmode=disable").Once
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.DiscardHandler)}, o, newInvoices(o, once.ByKey, nil))
	require.NoError(t, err)
	failed, examined := 0, false
	for _, c := range operate.Diagnose(t.Context(), operate.Examinations(reg), time.Minute, nil).Checks {
		if c.Level == operate.Fail {
			failed++
			require.NotEmpty(t, c.Remedy, c.String())
		}
		if c.Name == "effects kinds" {
			examined = true
			require.Equal(t, operate.Warn, c.Level)
			require.Equal(t, "not examined, because the ledger can't be opened", c.Text)
		}
	}
	require.True(t, examined)
	require.Equal(t, 2, failed, "the tables, and the database")
}
