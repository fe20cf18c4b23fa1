package once_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// A probe says of each far side whether it does what the kind states.
func TestAProbeJudgesTheFarSide(t *testing.T) {
	t.Parallel()
	ok, warn, fail := operate.OK, operate.Warn, operate.Fail
	const known = "receipt of invoice:probe:1" // of a far side that is not told what to answer
	does := func(a once.Answer) oncetest.Step { return oncetest.Step{Execute: true, Answer: a} }
	for name, c := range map[string]struct {
		repeat once.Repeat
		steps  []oncetest.Step
		levels []operate.Level
		says   string
	}{
		"a key that it knows":           {once.ByKey, nil, []operate.Level{ok, ok, ok}, "the same receipt, so the far side knows the key"},
		"a lookup":                      {once.ByLookup, nil, []operate.Level{ok, ok}, "finds the effect"},
		"two receipts":                  {once.ByKey, []oncetest.Step{does(once.IsDone("in_1")), does(once.IsDone("in_2"))}, []operate.Level{ok, fail, fail}, "has another receipt, in_2: the far side did it twice"},
		"no receipt":                    {once.ByKey, []oncetest.Step{does(once.IsDone("")), does(once.IsDone(""))}, []operate.Level{ok, warn, ok}, "which does not show whether it was done twice"},
		"a key that it refuses":         {once.ByKey, []oncetest.Step{does(once.IsDone(known)), does(once.IsRejected("exists", "it exists"))}, []operate.Level{ok, fail, ok}, "was answered as rejected (it exists), though the first one was done: an effect whose first answer is lost would end as failed"},
		"a key that waits":              {once.ByKey, []oncetest.Step{does(once.IsDone(known)), does(once.Answer{Class: once.Retry})}, []operate.Level{ok, fail, ok}, "would be sent again until its attempts are used up"},
		"a lookup that finds nothing":   {once.ByLookup, []oncetest.Step{does(once.IsDone("in_1")), does(once.Answer{Class: once.NotDone})}, []operate.Level{ok, fail}, "finds nothing, though the request was done"},
		"a lookup that finds another":   {once.ByLookup, []oncetest.Step{does(once.IsDone("in_1"))}, []operate.Level{ok, fail}, "finds the receipt " + known + ", and the request was answered with in_1"},
		"a request that it refuses":     {once.ByKey, []oncetest.Step{does(once.IsRejected("", "no such customer"))}, []operate.Level{fail}, "was not answered as done but as rejected (no such customer), so nothing more was sent"},
		"a request that may be done":    {once.ByKey, []oncetest.Step{does(once.Answer{})}, []operate.Level{fail}, "and it is perhaps done"},
		"a client that panics":          {once.ByKey, []oncetest.Step{{Panic: true}}, []operate.Level{fail}, "the call panicked"},
		"a lookup that is not answered": {once.ByLookup, []oncetest.Step{does(once.IsDone("in_1")), {Answer: once.Answer{Class: once.Throttled}}}, []operate.Level{ok, fail}, "was answered as throttled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := oncetest.New(t)
			p := newInvoices(w.Once, c.repeat, nil)
			p.far.Next(c.steps...)
			w.Start(p)
			a := operator{t, w}.must("once probe", operate.Input{"kind": {"invoice"}, "record": {invoice{Customer: "probe", Number: "1"}.payload()}, "yes": {"true"}})
			var levels []operate.Level
			var text string
			for _, check := range a.Checks {
				levels = append(levels, check.Level)
				text += check.String() + "\n"
			}
			require.Equal(t, c.levels, levels, text)
			require.Contains(t, text, c.says)
		})
	}
}

// A probe touches nothing of the ledger but its audit, and repeats no effect that is somebody's.
func TestAProbeIsOfTheOperatorsOwn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, one.key())
		_, err = o.ask("once probe", operate.Input{"kind": {"invoice"}, "record": {one.payload()}, "yes": {"true"}})
		require.ErrorContains(t, err, "invoice:acme:17 is in the ledger or was probed before, so its effect must not be repeated")
		_, err = o.preview("once probe", operate.Input{"kind": {"invoice"}, "record": {one.payload()}})
		require.ErrorContains(t, err, "is in the ledger", "a preview that promises more would mislead")
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
		for problem, in := range map[string]operate.Input{
			`has the kind "other"`:        {"kind": {"other"}, "record": {"{}"}},
			"decode a record of kind":     {"kind": {"invoice"}, "record": {"{"}},
			"the key of a record of kind": {"kind": {"invoice"}, "record": {"{}"}},
		} {
			_, err := o.ask("once probe", in)
			var wrong *operate.InputError
			require.ErrorAs(t, err, &wrong, problem)
			require.Contains(t, wrong.Problem, problem)
		}

		own := invoice{Customer: "probe", Number: "1", Cents: 100}
		in := operate.Input{"kind": {"invoice"}, "record": {own.payload()}}
		a, err := o.ask("once probe", in)
		var wrong *operate.InputError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "yes", wrong.Field)
		shown, err := o.preview("once probe", in)
		require.NoError(t, err)
		require.Equal(t, shown, a, "what would be sent")
		require.Contains(t, a.Tables[0].Rows, []string{"idempotency key", own.idempotency()})
		require.Zero(t, p.far.Executed(own.idempotency()), "without --yes nothing is sent, and nothing is recorded")

		in["yes"] = []string{"true"}
		a = o.must("once probe", in)
		require.False(t, a.Failed(), a.Checks)
		require.Equal(t, 1, p.far.Executed(own.idempotency()))
		_, err = o.ask("once probe", in)
		require.ErrorContains(t, err, "was probed before")
		value, err := json.Marshal(a.Value)
		require.NoError(t, err)
		require.Contains(t, string(value), `"call":"send 2","class":"done","receipt":"receipt of invoice:probe:1"`)
		_, err = p.effects.State(t.Context(), own.key())
		require.ErrorContains(t, err, "not found", "the ledger has no such effect")
		page, err := w.Once.AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		require.Len(t, page.Changes, 1)
		require.Equal(t, []string{"probe", "invoice/probe/1", "me", "ticket 4711"}, []string{page.Changes[0].Action, page.Changes[0].Subject, page.Changes[0].Who, page.Changes[0].Why})
	})
}

// With a far side that knows neither keys nor lookups there is nothing to find out, and nothing is sent.
func TestAProbeSendsNothingTwiceThatNobodyCanTell(t *testing.T) {
	t.Parallel()
	for _, r := range []once.Repeat{once.Never, once.Always} {
		w := oncetest.New(t)
		p := newInvoices(w.Once, r, nil)
		w.Start(p)
		own := invoice{Customer: "probe", Number: "1"}
		_, err := operator{t, w}.ask("once probe", operate.Input{"kind": {"invoice"}, "record": {own.payload()}})
		require.ErrorContains(t, err, "neither keys nor a lookup")
		require.Zero(t, p.far.Executed(own.idempotency()))
	}
}
