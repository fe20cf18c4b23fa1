package once_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// operator does what a person does with the commands.
type operator struct {
	t *testing.T
	w *oncetest.World
}

func (o operator) ask(name string, in operate.Input) (operate.Answer, error) {
	for _, r := range o.w.Once.Operations().Reports {
		if r.Name == name {
			return r.Read(o.t.Context(), nil, in)
		}
	}
	a := o.action(name)
	if _, err := a.Preview(o.t.Context(), nil, in); err != nil {
		return operate.Answer{}, err
	}
	return a.Do(o.t.Context(), nil, in, operate.Use{Who: "me", Why: "ticket 4711"})
}

func (o operator) preview(name string, in operate.Input) (operate.Answer, error) {
	return o.action(name).Preview(o.t.Context(), nil, in)
}

func (o operator) action(name string) operate.Action {
	for _, a := range o.w.Once.Operations().Actions {
		if a.Name == name {
			return a
		}
	}
	require.Fail(o.t, "no such operation", name)
	return operate.Action{}
}

func (o operator) must(name string, in operate.Input) operate.Answer {
	o.t.Helper()
	a, err := o.ask(name, in)
	require.NoError(o.t, err, name)
	return a
}

func input(id string, more ...string) operate.Input {
	in := operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {id}, "limit": {"50"}}
	for i := 0; i < len(more); i += 2 {
		in[more[i]] = []string{more[i+1]}
	}
	return in
}

func TestAGroupIsPausedAndResumedAndCancelled(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		_, err := o.ask("once pause", input(""))
		require.ErrorContains(t, err, "group acme of kind invoice has no effect in the ledger")
		_, err = p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, one.key())

		require.Equal(t, "invoice acme is PAUSED", o.must("once pause", input("")).Lines[1])
		second := invoice{Customer: "acme", Number: "18", Cents: 5}
		_, err = p.effects.Enqueue(t.Context(), second, invoice{Customer: "zeta", Number: "1"})
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, once.Key{Group: "zeta", ID: "1"}) // another group goes on
		explained := o.must("once explain", input("18"))
		require.Len(t, explained.Notes, 1)
		require.Regexp(t, "^Next: nothing until its group is resumed: `once resume`. It has been paused since [0-9TZ:-]+ by .+: .+[.]$", explained.Notes[0])
		require.Equal(t, "pause of the group", explained.Tables[1].Rows[0][1])
		require.Equal(t, "pause", o.must("once status", input("")).Tables[1].Rows[0][1])
		require.Zero(t, p.far.Executed(second.idempotency()))

		o.must("once resume", input(""))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, second.key()).State)

		o.must("once pause", input(""))
		third := invoice{Customer: "acme", Number: "19"}
		_, err = p.effects.Enqueue(t.Context(), third)
		require.NoError(t, err)
		require.Contains(t, o.must("once cancel", input("")).Lines[0], "The group is cancelled.")
		require.Equal(t, rules.Cancelled, oncetest.Settled(t, p.effects, third.key()).State)
		got, err := p.effects.Enqueue(t.Context(), third, invoice{Customer: "acme", Number: "20"})
		require.NoError(t, err)
		require.Equal(t, []once.Accepted{once.Cancelled, once.Cancelled}, got)
		require.Zero(t, p.far.Executed(third.idempotency()))

		list := o.must("once", operate.Input{"limit": {"50"}}).Tables[0]
		require.Len(t, list.Rows, 2)
		for _, row := range list.Rows {
			if row[1] == "acme" {
				require.Equal(t, []string{"4", "2", "0", "0", "2", "0"}, row[4:10], "accepted, done, failed, unknown, cancelled, open")
			}
		}
	})
}

// An effect whose outcome nobody knows is listed, and ends by what an operator found out.
func TestAnUnknownEffectIsResolved(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, nil)
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}})
		w.Start(p)
		o := operator{t, w}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Unknown, oncetest.Settled(t, p.effects, one.key()).State)
		problems := o.must("once problems", input("", "state", "unknown")).Tables[0]
		require.Len(t, problems.Rows, 1)
		require.Equal(t, []string{"invoice", "acme", "17", "UNKNOWN"}, problems.Rows[0][:4])
		x := o.must("once explain", input("17"))
		require.Contains(t, x.Lines, "  value           12.00 EUR for acme")
		require.Equal(t, "no answer within 3s", x.Tables[0].Rows[0][7])

		_, err = o.ask("once resolve", input("17"))
		require.ErrorContains(t, err, "give either --done RECEIPT or --not-done")
		_, err = o.ask("once replay", input("17"))
		require.ErrorContains(t, err, "no call can find that out")
		x = o.must("once resolve", input("17", "done", "in_81x"))
		require.Equal(t, []string{"Next: nothing. It is done."}, x.Notes)
		require.Equal(t, []string{"resolve", "me", "ticket 4711"}, x.Tables[1].Rows[0][1:4])
		_, err = o.ask("once resolve", input("17", "not-done", "true"))
		require.ErrorContains(t, err, "it is not UNKNOWN")
		require.Empty(t, o.must("once problems", input("")).Tables[0].Rows)
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
	})
}

// A failed effect gets its attempts again once its cause is repaired.
func TestAFailedEffectIsReplayed(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, nil)
	p.far.Next(oncetest.Step{Answer: once.IsRejected("no_such_customer", "unknown customer")})
	w.Start(p)
	o := operator{t, w}
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	require.Equal(t, rules.Failed, oncetest.Settled(t, p.effects, one.key()).State)
	o.must("once replay", input("17"))
	require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
	_, err = o.ask("once replay", input("17"))
	require.ErrorContains(t, err, "it is done")
	_, err = o.ask("once explain", input("404"))
	require.ErrorContains(t, err, "invoice:acme:404 is not in the ledger")
}

// The answers for programs have the names that other commands have, and the times as numbers.
func TestAnswersForPrograms(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.Never, nil)
	p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer"}})
	w.Start(p)
	o := operator{t, w}
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	oncetest.Settled(t, p.effects, one.key())
	p.effects.Silence(t.Context())
	o.must("once pause", input(""))
	value := func(name string, in operate.Input) string {
		text, err := json.Marshal(o.must(name, in).Value)
		require.NoError(t, err)
		return regexp.MustCompile(`"[0-9-]+T[0-9:.]+Z"`).ReplaceAllString(string(text), `"TIME"`)
	}
	status := `{"kind":"invoice","group":"acme","state":"PAUSED","created_at":"TIME","expected":0,"finished":false,"accepted":1,"done":0,"failed":0,"unknown":1,"cancelled":0,"waiting":0,"calling":0,"oldest_due_seconds":0}`
	limits := `{"per_second":0,"in_flight":0,"per_second_from":"settings","in_flight_from":"settings"}`
	require.JSONEq(t, strings.TrimSuffix(status, "}")+`,"limits":`+limits+`,"stops":[],"kind_paused":null,"audit":[{"at":"TIME","who":"me","why":"ticket 4711","action":"pause","detail":"RUNNING to PAUSED"}],"next":"","rate":null,"calls":{"answers":{},"mean_seconds":0,"p50_seconds":0,"p99_seconds":0},"instances":[]}`,
		value("once status", input("")))
	require.JSONEq(t, `{"groups":[`+strings.TrimSuffix(status, "}")+`,"per_second":null}],"more":false,"paused_kinds":[]}`, value("once", input("")))
	require.JSONEq(t, `{"problems":[{"kind":"invoice","group":"acme","id":"17","state":"UNKNOWN","at":"TIME","class":"unknown","error":"no answer"}],"more":false}`,
		value("once problems", input("")))
	require.Contains(t, value("once explain", input("17")), `"audit":[],"group_audit":[{"at":"TIME","who":"me","why":"ticket 4711","action":"pause","detail":"RUNNING to PAUSED"}]`)
	o.must("once resolve", input("17", "done", "in_1"))
	require.Contains(t, value("once explain", input("17")), `"audit":[{"at":"TIME","who":"me","why":"ticket 4711","action":"resolve","detail":`)
}
