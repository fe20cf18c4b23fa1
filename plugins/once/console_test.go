package once_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// open loads a panel of a page as the console does.
func (o operator) open(path, panel string, in operate.Input) (console.Block, error) {
	o.t.Helper()
	pages := o.w.Once.Console()
	i := slices.IndexFunc(pages, func(p console.Page) bool { return p.Path == path })
	require.GreaterOrEqual(o.t, i, 0, path)
	require.NoError(o.t, pages[i].Validate())
	for _, p := range pages[i].Panels {
		if p.Name == panel {
			return p.Load(o.t.Context(), p.QueryOf(in, nil))
		}
	}
	require.Fail(o.t, "no such panel", panel)
	return nil, nil
}

// see returns what programs get of a panel.
func (o operator) see(path, panel string, in operate.Input) string {
	o.t.Helper()
	b, err := o.open(path, panel, in)
	require.NoError(o.t, err)
	text, err := json.Marshal(b.JSON())
	require.NoError(o.t, err)
	return string(text)
}

func TestPagesOfEffects(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		ready := false
		p := newInvoices(w.Once, once.Never, func(k *once.Kind[invoice], _ *once.KindConfig) {
			k.Gate = gate(func() bool { return ready })
		})
		o := operator{t, w}
		require.NotEmpty(t, w.Once.Console())
		_, err := o.open("effects", "groups", nil)
		require.ErrorContains(t, err, "the ledger is not open")
		_, err = o.open("effects", "kinds", nil)
		require.ErrorContains(t, err, "the ledger is not open")
		w.Start(p)
		require.Eventually(t, func() bool { // when it is measured
			kinds := o.see("effects", "kinds", nil)
			return strings.Contains(kinds, `"due":0,"failed":0`) && strings.Contains(kinds, "calls nothing, because its client says")
		}, minute, 5*millisecond)
		require.JSONEq(t, `[]`, o.see("effects", "groups", nil))
		in := operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"17"}}
		require.Contains(t, o.see("effects/effect", "effect", in), "is not in the ledger")
		require.Contains(t, o.see("effects/group", "group", in), "No effect of the kind")
		require.Contains(t, o.see("effects/effect", "effect", nil), "Give the kind, the group and the id")

		_, err = p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Contains(t, o.see("effects/group", "group", in), `"waiting":1`)
		p.effects.Measure(t.Context())
		require.Contains(t, o.see("effects/effect", "effect", in), `"next":"the request is sent when an instance calls for the kind invoice again. `)
	})
}

// A person reaches each group with the links of the pages.
func TestManyGroupsOfEffectsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		var want []string
		for n := range 203 {
			i := invoice{Customer: fmt.Sprintf("customer-%03d", n), Number: "1"}
			_, err := p.effects.Enqueue(t.Context(), i)
			require.NoError(t, err)
			want = append(want, i.Customer)
		}
		read := func() (names []string, pages int) {
			for in := (operate.Input{}); in != nil; pages++ {
				b, err := o.open("effects", "groups", in)
				require.NoError(t, err)
				page := b.(console.Table)
				for _, row := range page.Rows {
					names = append(names, row[1].Text)
				}
				in = nil
				if page.Next != "" {
					next, err := url.Parse(page.Next)
					require.NoError(t, err)
					in = operate.Input(next.Query())
				}
			}
			return names, pages
		}
		require.Eventually(t, func() bool { // a group is listed once it was called for
			w.Turn(minute)
			names, _ := read()
			return len(names) >= len(want)
		}, minute, 5*millisecond)
		names, pages := read()
		require.ElementsMatch(t, want, names, "each once")
		require.Equal(t, 2, pages)
		b, err := o.open("effects", "groups", operate.Input{"after_kind": {"<absent>"}, "after_group": {"x"}})
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(b), `No kind "<absent>" has the group "x".`)
	})
}

// A far side that is down is no kind that calls.
func TestThePageOfKindsSaysThatTheFarSideIsDown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		down := oncetest.Step{Answer: once.Answer{Class: once.NotSent, Text: "connection refused"}}
		p.far.Next(down, down, down, down, down, down, down, down)
		w.Start(p)
		o := operator{t, w}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			w.Turn(minute)
			return strings.Contains(o.see("effects", "kinds", nil), `"state":"the far side has carried out nothing since `)
		}, minute, 5*millisecond)
		require.Contains(t, o.see("effects", "kinds", nil), "connection refused")
	})
}

// What failed or is unknown is named on every page on which somebody looks for it, down to the call.
func TestThePageOfAnEffectThatNobodyKnows(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Never, nil)
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Text: "no answer within 3s"}})
		w.Start(p)
		o := operator{t, w}
		other := invoice{Customer: "zeta", Number: "1"}
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Unknown, oncetest.Settled(t, p.effects, one.key()).State)
		_, err = p.effects.Enqueue(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, other.key()).State)
		in := operate.Input{"kind": {"invoice"}, "group": {"acme"}, "id": {"17"}}

		groups := withoutTimes(o.see("effects", "groups", nil))
		require.Contains(t, groups, `"accepted":1,"being_called":0,"cancelled":0,"created":"TIME","done":0,"failed":0,"group":"acme"`)
		require.Contains(t, groups, `"accepted":1,"being_called":0,"cancelled":0,"created":"TIME","done":1,"failed":0,"group":"zeta"`)
		for _, page := range []string{"effects", "effects/group"} {
			problems := o.see(page, "problems", in)
			require.Contains(t, problems, `"answer":"no answer within 3s"`)
			require.Contains(t, problems, `"state":"unknown"`)
		}
		zeta := operate.Input{"kind": {"invoice"}, "group": {"zeta"}}
		require.JSONEq(t, `[]`, o.see("effects/group", "problems", zeta))
		require.Contains(t, o.see("effects/group", "group", in), `"level":"ok","text":"accepted 1 = ended 1 + open 0"`)
		_, err = o.open("effects/group", "parts", in)
		require.ErrorIs(t, err, console.ErrNothing, "no effect has a part")

		effect := o.see("effects/effect", "effect", in)
		for _, want := range []string{
			`"state":"unknown"`, `"value":"12.00 EUR for acme"`, `"idempotency_key":"invoice:acme:17"`, `"perhaps_done":true`,
			`"request":"{\"customer\":\"acme\",\"number\":\"17\",\"cents\":1200}"`, `"answer":"no answer within 3s"`, `"call":"send 1"`,
			"Look at the far side, then `once resolve --done RECEIPT` or `--not-done`.",
		} {
			require.Contains(t, effect, want)
		}
		o.must("once resolve", input("17", "not-done", "true"))
		effect = o.see("effects/effect", "effect", in)
		require.Contains(t, effect, `"why":"ticket 4711"`)
		require.Contains(t, effect, `"perhaps_done":false`)

		// A link leads from the row of a problem or a group to its page.
		b, err := o.open("effects", "groups", nil)
		require.NoError(t, err)
		require.Equal(t, "effects/group?group=acme&kind=invoice", b.(console.Table).Rows[1][1].Link)
	})
}

// The pages of a group and of an effect lead to what an operator can do about them.
func TestThePagesLeadToActions(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	newInvoices(w.Once, once.Never, nil)
	fields := map[string][]string{}
	for _, a := range w.Once.Operations().Actions {
		for _, f := range a.Fields {
			if f.Required {
				fields[a.Name] = append(fields[a.Name], f.Name)
			}
		}
	}
	for path, in := range map[string][]string{"effects/group": {"kind", "group"}, "effects/effect": {"kind", "group", "id"}} {
		i := slices.IndexFunc(w.Once.Console(), func(p console.Page) bool { return p.Path == path })
		actions := w.Once.Console()[i].Panels[0].Actions
		require.NotEmpty(t, actions)
		for _, name := range actions {
			require.Subset(t, in, fields[name], "the address of the page has what %s requires", name)
		}
	}
}

func TestABinaryWithoutKindsHasNoPagesOfEffects(t *testing.T) {
	t.Parallel()
	require.Empty(t, once.NewPlugin(nil, nil).Console())
}
