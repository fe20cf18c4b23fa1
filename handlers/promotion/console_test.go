package promotion_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// panel loads a panel of a page as the console does, and returns what programs get of it.
func (sys *system) panel(page, name string, in operate.Input) string {
	sys.t.Helper()
	b, err := sys.load(page, name, in)
	require.NoError(sys.t, err)
	text, err := json.Marshal(b.JSON())
	require.NoError(sys.t, err)
	return string(text)
}

func (sys *system) load(page, name string, in operate.Input) (console.Block, error) {
	sys.t.Helper()
	pages := sys.payouts.Console()
	i := slices.IndexFunc(pages, func(p console.Page) bool { return p.Path == page })
	require.NoError(sys.t, pages[i].Validate())
	j := slices.IndexFunc(pages[i].Panels, func(p console.Panel) bool { return p.Name == name })
	panel := pages[i].Panels[j]
	return panel.Load(sys.t.Context(), panel.QueryOf(in, nil))
}

// do uses an action of the plugin as a form does.
func (sys *system) do(name string, in operate.Input) (operate.Answer, error) {
	sys.t.Helper()
	actions := sys.payouts.Operations().Actions
	a := actions[slices.IndexFunc(actions, func(a operate.Action) bool { return a.Name == name })]
	in = a.Complete(in)
	if err := a.Check(in); err != nil {
		return operate.Answer{}, err
	}
	said, err := a.Preview(sys.t.Context(), nil, in)
	if err != nil {
		return said, err
	}
	require.NotEmpty(sys.t, said.Lines)
	return a.Do(sys.t.Context(), nil, in, operate.Use{Who: "ann", Why: "ticket 4711"})
}

func TestPagesOfCampaigns(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		one := operate.Input{"promotion": {"POINT:1"}, "payout": {"POINT:1:7"}}
		_, err := sys.load("campaigns", "campaigns", nil)
		require.ErrorContains(t, err, "the ledger is not open")
		_, err = sys.do("campaign pause", one)
		require.ErrorContains(t, err, "the ledger is not open")
		sys.start()
		require.Equal(t, `[]`, sys.panel("campaigns", "campaigns", nil))
		require.Contains(t, sys.panel("campaigns/campaign", "none", one), "POINT:1 is not in the ledger")
		require.Contains(t, sys.panel("campaigns/campaign", "none", nil), "Give a campaign")
		for _, in := range []operate.Input{one, nil} {
			_, err = sys.load("campaigns/campaign", "campaign", in)
			require.ErrorIs(t, err, console.ErrNothing, "nothing is offered for a campaign that does not exist")
		}
		require.Contains(t, sys.panel("campaigns/payout", "payout", one), "POINT:1:7 is not in the ledger. If its record was published")
		require.Contains(t, sys.panel("campaigns/payout", "payout", operate.Input{"payout": {"COIN:1:7"}}), "TYPE must be one of")

		_, err = sys.do("campaign pause", operate.Input{"promotion": {"POINT:1"}, "future": {"true"}})
		require.NoError(t, err)
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(1)}, ledger.AcceptOptions{})[0].Err)
		list := sys.panel("campaigns", "campaigns", nil)
		require.Contains(t, list, `"accepted":1,"campaign":"POINT:1","cancelled":0`)
		require.Contains(t, list, `"state":"paused","unknown":0,"waiting":1`)
		_, err = sys.load("campaigns/campaign", "none", one)
		require.ErrorIs(t, err, console.ErrNothing)
		page := sys.panel("campaigns/campaign", "campaign", one)
		require.Contains(t, page, `accepted 1 = ended 0 + waiting 1`)
		require.Contains(t, page, `"why":"ticket 4711"`)
		answer, err := sys.do("campaign resume", one)
		require.NoError(t, err)
		require.Equal(t, []string{"POINT:1: resumed. All instances apply it within 2 s."}, answer.Lines)
		sys.settle("POINT", 1)
		require.Contains(t, sys.panel("campaigns/campaign", "campaign", one), `accepted 1 = ended 1 + waiting 0`)
		require.Contains(t, sys.panel("campaigns/campaign", "summaries", one), `[{"cancelled":0,"failed":0,"paid":1,"summary":"9","unknown":0}]`)
		require.Contains(t, sys.panel("campaigns", "campaigns", nil), `"state":"finished"`)
		require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: 1}, 2))
		require.Contains(t, sys.panel("campaigns", "campaigns", nil), `"state":"running, 1 of 2 accepted"`)
		require.Contains(t, sys.panel("campaigns/campaign", "campaign", one), `running, 1 of 2 accepted`)

		// What the rate is read of is there while a campaign runs.
		sys.send(publish, points(100, 400)...)
		require.Eventually(t, func() bool {
			return strings.Contains(sys.panel("campaigns/campaign", "campaign", one), `"breaker":"closed"`)
		}, 2*time.Minute, 5*time.Millisecond)
	})
}

// A payout that nobody knows is found by its id, with each call, and resolved in a form.
func TestThePageOfAPayoutThatNobodyKnows(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, onlyOnce)
		sys.unknown(7)
		sys.start()
		in := operate.Input{"promotion": {"POINT:1"}, "payout": {"POINT:1:7"}}
		require.Contains(t, sys.panel("campaigns/campaign", "problems", in), `[{"attempts_used":1,"class":"timeout"`)
		require.Equal(t, `[]`, sys.panel("campaigns/campaign", "problems", operate.Input{"promotion": {"POINT:2"}}))
		require.Contains(t, sys.panel("campaigns", "unknown", nil), `"payout":"POINT:1:7"`, "of all campaigns")
		page := sys.panel("campaigns/payout", "payout", in)
		for _, want := range []string{`"state":"unknown"`, `"perhaps_charged":true`, `"call":"send 1"`, "no answer within 300ms", `unknown resolve POINT 1 7`, `\"amount\":70`} {
			require.Contains(t, page, want)
		}
		require.Contains(t, sys.panel("campaigns/payout", "money-api", in), "The Money API says: no charge with this key")
		b, err := sys.load("campaigns/campaign", "problems", in)
		require.NoError(t, err)
		require.Equal(t, "campaigns/payout?payout=POINT%3A1%3A7", b.(console.Table).Rows[0][0].Link)
		require.Eventually(t, func() bool { // the relay has brought its dead letter to the store
			return strings.Contains(sys.panel("campaigns/campaign", "letters", in), `"payout":"POINT:1:7"`)
		}, 2*time.Minute, 20*time.Millisecond)
		b, err = sys.load("campaigns/campaign", "campaign", in)
		require.NoError(t, err)
		require.Equal(t, "dead-letters/group?plugin="+sys.payouts.Name()+"&subject=POINT%3A1", linkOf(b, "Dead letters that wait"), "to where all of them are replayed")

		_, err = sys.do("unknown resolve", in)
		require.ErrorContains(t, err, "give either --paid with the transaction key, or --unpaid")
		in["paid"] = []string{"tx-book"}
		_, err = sys.do("unknown resolve", in)
		require.ErrorContains(t, err, "nothing was changed: the Money API has no charge with this key")
		in["force"] = []string{"true"}
		answer, err := sys.do("unknown resolve", in)
		require.NoError(t, err)
		require.Contains(t, strings.Join(answer.Lines, "\n"), "POINT:1:7 is SUCCESS now, according to ann.")
		require.Equal(t, 1, strings.Count(strings.Join(answer.Lines, "\n"), "Next: "), "the outcome changes what was next before")
		page = sys.panel("campaigns/payout", "payout", in)
		require.Contains(t, page, `"transaction":"tx-book"`)
		require.Equal(t, `[]`, sys.panel("campaigns", "unknown", nil))
		require.Contains(t, page, `"why":"ticket 4711 (the Money API says: no charge`)
		require.Equal(t, `[]`, sys.panel("campaigns/campaign", "letters", in), "its dead letter is discarded")
		require.Equal(t, rules.GroupRunning, sys.counts("POINT").State)
	})
}

// linkOf returns the link of a number of a panel.
func linkOf(b console.Block, name string) string {
	blocks, _ := b.(console.Blocks)
	for _, one := range blocks {
		stats, _ := one.(console.Stats)
		for _, s := range stats {
			if s.Name == name {
				return s.Cell.Link
			}
		}
	}
	return ""
}

// Who sees what is masked is in the audit of the payout.
func TestRevealOfAPayoutIsAudited(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.end(7, rules.Done)
		sys.start()
		in := operate.Input{"payout": {"POINT:1:7"}}
		pages := sys.payouts.Console()
		panel := pages[2].Panels[0]
		require.NoError(t, panel.Reveal(t.Context(), panel.QueryOf(in, nil), operate.Use{Who: "ann", Why: "ticket 7"}))
		require.Contains(t, sys.panel("campaigns/payout", "payout", in), `"action":"reveal","detail":"the record, the request and all answers"`)
		require.ErrorContains(t, panel.Reveal(t.Context(), panel.QueryOf(in, nil), operate.Use{Who: "ann"}), "needs who and why")
		in["payout"] = []string{"POINT:1:8"}
		require.ErrorIs(t, panel.Reveal(t.Context(), panel.QueryOf(in, nil), operate.Use{Who: "ann", Why: "ticket 7"}), console.ErrNothing)
	})
}

// A campaign with more dead letters than a page has leads to the others.
func TestACampaignLeadsToAllItsDeadLetters(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		sys.start()
		copies, err := store.Connect(t.Context(), sqldb.Databases{}, sys.letters, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, copies.Close()) }()
		for n := range 201 {
			d := store.From(fmt.Sprintf("letter-%03d", n), sys.payouts.Name(), "dead", "", pipeline.DeadLetter{Payload: []byte("{}"), Class: "rejected", Handler: "promotion.stream"})
			d.Subject = fmt.Sprintf("POINT:1:%d", n)
			d.Lineage = store.LineageOf(d.Plugin, d.Subject)
			require.NoError(t, copies.Put(t.Context(), d))
		}
		b, err := sys.load("campaigns/campaign", "letters", operate.Input{"promotion": {"POINT:1"}})
		require.NoError(t, err)
		page, ok := b.(console.Table)
		require.True(t, ok)
		require.Equal(t, []any{200, "… and 1 more.", "dead-letters/group?before=letter-001&plugin=" + sys.payouts.Name() + "&subject=POINT%3A1"}, []any{len(page.Rows), page.Note, page.Next})
	})
}

// The pages lead to what an operator can do, and the address has what each action requires.
func TestThePagesOfCampaignsLeadToActions(t *testing.T) {
	t.Parallel()
	sys := newSystem(t, simulator.Faults{}, nil)
	required := map[string][]string{}
	for _, a := range sys.payouts.Operations().Actions {
		require.True(t, a.Audited, a.Name)
		for _, f := range a.Fields {
			if f.Required {
				required[a.Name] = append(required[a.Name], f.Name)
			}
		}
	}
	for path, in := range map[string][]string{"campaigns/campaign": {"promotion"}, "campaigns/payout": {"payout"}} {
		i := slices.IndexFunc(sys.payouts.Console(), func(p console.Page) bool { return p.Path == path })
		panels := sys.payouts.Console()[i].Panels
		actions := panels[slices.IndexFunc(panels, func(p console.Panel) bool { return len(p.Actions) > 0 })].Actions
		require.NotEmpty(t, actions)
		for _, name := range actions {
			require.NotEmpty(t, required[name], name)
			require.Subset(t, in, required[name], name)
		}
	}
}

// What may have been charged is one number in the totals, in the list below them, and on the page of the payout, and
// apart from what a person must decide.
func TestThePagesAgreeOnWhatIsPerhapsCharged(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil)
		in := operate.Input{"promotion": {"POINT:1"}, "payout": {"POINT:1:7"}}
		require.NoError(t, sys.ledger.Accept(t.Context(), []payouts.Record{pointRecord(7), pointRecord(8)}, ledger.AcceptOptions{})[0].Err)
		_, err := sys.ledger.Begin(t.Context(), pointRecord(7)) // by an instance that ends
		require.NoError(t, err)
		sys.start()
		page := sys.panel("campaigns/campaign", "campaign", in)
		require.Contains(t, page, `"perhaps_charged":1`)
		require.Contains(t, page, `"with_a_worker":1`)
		require.Contains(t, page, `"next_from_the_retry_topic":0`)
		require.Contains(t, page, "The routes count records")
		require.Contains(t, page, "of them 1 by watcher. These are not heard of")
		require.Contains(t, sys.panel("campaigns/campaign", "perhaps", in), `"payout":"POINT:1:7"`)
		oldest := sys.panel("campaigns/campaign", "oldest", in)
		require.Contains(t, oldest, "watcher had begun to call at", "why the first one waits")
		require.Contains(t, oldest, `"payout":"POINT:1:7"`)
		require.Equal(t, `[]`, sys.panel("campaigns/campaign", "problems", in))
		one := sys.panel("campaigns/payout", "payout", in)
		require.Contains(t, one, `"perhaps_charged":true`)
		require.Contains(t, one, "watcher had begun to call at")
		require.Contains(t, one, "and is not heard of: it has ended, or does not reach Redis; the lease ends in")
		require.Contains(t, sys.says(app.ExitOK, "campaign", "explain", "POINT", "1", "7"), "is not heard of: it has ended, or does not reach Redis; the lease ends in")
	})
}

// The state of the client of an instance that runs is shown also when no instance reads the stream.
func TestAnInstanceThatReadsNoStreamIsKnown(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		sys := newSystem(t, simulator.Faults{}, nil).start()
		sys.end(1, rules.Done)
		in := operate.Input{"promotion": {"POINT:1"}}
		require.Eventually(t, func() bool {
			return strings.Contains(sys.panel("campaigns/campaign", "campaign", in), `"breaker":"closed"`)
		}, 2*time.Minute, 20*time.Millisecond)
		require.Contains(t, sys.panel("campaigns/campaign", "campaign", in), "does not read its stream now")
		text := sys.says(app.ExitOK, "campaign", "status", "POINT", "1")
		require.Contains(t, text, "no instance reads its stream now")
		require.Contains(t, text, "runs, breaker closed, calls now 0")
		require.Regexp(t, `rate +0 payouts a second since the start of \S+ \d+s ago`, text)
	})
}
