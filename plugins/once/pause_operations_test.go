package once_test

import (
	"encoding/json"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

func wholeKind() operate.Input { return operate.Input{"kind": {"invoice"}, "all": {"true"}} }

// withoutTimes leaves out the times of a text.
func withoutTimes(text string) string {
	return regexp.MustCompile(`[0-9-]{10}T[0-9:.]+Z`).ReplaceAllString(text, "TIME")
}

// A whole kind is paused by another process. Nothing of it is called for by either instance until it is resumed, which
// leaves a group paused that was so for itself. Each place where a person looks says who paused it and why.
func TestAKindIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		other := oncetest.On(t, w.Once.Settings().(*once.Config).Ledger.DSN.Reveal())
		q := newInvoices(other.Once, once.ByKey, nil)
		other.Start(q)
		o, here := command(t, w, nil), operator{t, w}
		zeta := operate.Input{"kind": {"invoice"}, "group": {"zeta"}}
		_, err := p.effects.Enqueue(t.Context(), one, invoice{Customer: "zeta", Number: "1"})
		require.NoError(t, err)
		oncetest.Settled(t, p.effects, one.key())
		oncetest.Settled(t, p.effects, once.Key{Group: "zeta", ID: "1"})
		o.must("once pause", zeta)

		a, err := o.preview("once pause", wholeKind())
		require.NoError(t, err)
		require.Equal(t, "The kind invoice is not paused", a.Lines[1])
		const text = "The kind invoice has been paused since TIME by me: ticket 4711"
		a = o.must("once pause", wholeKind())
		require.Equal(t, []string{"No call starts any more; none is being called.", text}, []string{a.Lines[0], withoutTimes(a.Lines[1])})
		require.Equal(t, []string{"pause", "me", "ticket 4711", "the kind: RUNNING to PAUSED"}, a.Tables[1].Rows[0][1:])

		second, third := invoice{Customer: "acme", Number: "18"}, invoice{Customer: "zeta", Number: "2"}
		_, err = p.effects.Enqueue(t.Context(), second)
		require.NoError(t, err)
		_, err = q.effects.Enqueue(t.Context(), third)
		require.NoError(t, err)
		require.Equal(t, "Next: nothing until the kind invoice is resumed: `once resume --kind invoice --all`. It has been paused since TIME by me: ticket 4711.", withoutTimes(o.next(second)))
		require.Contains(t, o.must("once explain", operate.Input{"kind": {"invoice"}, "group": {"zeta"}, "id": {"2"}}).Notes[0], "Its group is paused, too, and must be resumed as well")
		status := o.must("once status", input(""))
		require.Contains(t, withoutTimes(status.Lines[2]), text)
		value, err := json.Marshal(status.Value)
		require.NoError(t, err)
		require.Contains(t, withoutTimes(string(value)), `"kind_paused":{"kind":"invoice","since":"TIME","who":"me","why":"ticket 4711"}`)
		require.Equal(t, text, withoutTimes(o.must("once", operate.Input{"limit": {"50"}}).Notes[0]))
		p.effects.Measure(t.Context())
		require.Equal(t, "warn has been paused since TIME by me: ticket 4711", withoutTimes(said(t, w)))
		require.Contains(t, here.see("effects", "kinds", nil), "by me: ticket 4711")
		require.Contains(t, here.see("effects/group", "group", input("")), "by me: ticket 4711")

		require.Contains(t, o.must("once resume", input("")).Lines[0], "calls start when its kind is resumed, too", "the group is not paused, and its kind is")
		a = o.must("once resume", wholeKind())
		require.Equal(t, "The kind invoice is not paused", a.Lines[1])
		require.Equal(t, []string{"pause", "resume"}, []string{a.Tables[1].Rows[0][1], a.Tables[1].Rows[1][1]})
		var resumed struct{ Audit []struct{ At time.Time } }
		value, err = json.Marshal(a.Value)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(value, &resumed))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, second.key()).State)
		require.False(t, startOf(t, o, second).Before(resumed.Audit[1].At), "no call before the resume")
		require.Equal(t, "invoice zeta is PAUSED", o.must("once status", zeta).Lines[0])
		o.must("once resume", zeta)
		require.Equal(t, rules.Success, oncetest.Settled(t, q.effects, third.key()).State)
		require.Equal(t, 2, p.far.Executed(second.idempotency())+q.far.Executed(second.idempotency())+p.far.Executed(third.idempotency())+q.far.Executed(third.idempotency()))
	})
}

// A pause and a cancellation say in preview and answer how many effects are being called, and until when at most.
func TestWhatIsUnderWayIsSaid(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		var started <-chan struct{}
		var finish func()
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
			c.LeaseMargin, c.KeyTTL = 2*hour, 24*hour
			started, finish = held(t, k)
		})
		w.Start(p)
		second := invoice{Customer: "acme", Number: "18"}
		_, err := p.effects.Enqueue(t.Context(), one, second)
		require.NoError(t, err)
		<-started
		<-started
		o := operator{t, w}
		const running = `; effects that are being called \(2\) end normally, within (2h0m|1h59m)[0-9]+s at most[.]$`
		for _, in := range []operate.Input{input(""), wholeKind()} {
			require.Regexp(t, `would stay`+running, o.would("once pause", in))
			require.Regexp(t, `^No call starts any more`+running, o.must("once pause", in).Lines[0])
			o.must("once resume", in)
		}
		require.Regexp(t, `they are looked up`+running, o.would("once cancel", input("")))
		require.Regexp(t, `^The group is cancelled[.] Effects that this ended: 0; perhaps done, which are looked up: 0`+running, o.must("once cancel", input("")).Lines[0])
		finish()
		for _, i := range []invoice{one, second} {
			require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, i.key()).State)
		}
		require.Equal(t, "The group is cancelled. Effects that this ended: 0; perhaps done, which are looked up: 0; none is being called.", o.must("once cancel", input("")).Lines[0])
	})
}

// startOf returns when the first call for an effect started.
func startOf(t *testing.T, o operator, i invoice) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, o.must("once explain", input(i.Number)).Tables[0].Rows[0][1])
	require.NoError(t, err)
	return at
}

// An instance is ready while a kind is paused, however long, and after the resume until it had the time to call.
func TestAPausedKindMakesNoInstanceUnready(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	var calls atomic.Bool
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) { k.Gate = gate(calls.Load) })
	w.Start(p)
	o := operator{t, w}
	o.must("once pause", wholeKind())
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	w.Turn(hour)
	for _, step := range []string{"once pause", "once resume"} {
		o.must(step, wholeKind())
		p.effects.Measure(t.Context())
		require.NotContains(t, said(t, w), "fail ", step)
	}
	calls.Store(true)
	require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
}

// A whole kind is asked for by --all alone, so that a forgotten group pauses nothing.
func TestAPauseNamesAGroupOrTheWholeKind(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	newInvoices(w.Once, once.ByKey, nil)
	for _, a := range w.Once.Operations().Actions[:2] {
		require.Contains(t, []string{"once pause", "once resume"}, a.Name)
		require.NoError(t, a.Check(input("")))
		require.NoError(t, a.Check(wholeKind()))
		require.ErrorContains(t, a.Check(operate.Input{"kind": {"invoice"}}), "--group is required, or --all for the whole kind")
		require.ErrorContains(t, a.Check(input("", "all", "true")), "give --group or --all, not both")
	}
}
