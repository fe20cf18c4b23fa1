package deadletter

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// desk reads the pages of a plugin whose store is open.
type desk struct {
	*office
	plugin *Plugin
}

func (o *office) desk() desk {
	p := o.plugin()
	p.store.Store(o.store)
	return desk{o, p}
}

// at returns the only panel of an address, and its query.
func (d desk) at(address string) (console.Panel, console.Query) {
	d.t.Helper()
	path, values, _ := strings.Cut(address, "?")
	parsed, err := url.ParseQuery(values)
	require.NoError(d.t, err)
	pages := d.plugin.Console()
	i := slices.IndexFunc(pages, func(p console.Page) bool { return p.Path == path })
	require.GreaterOrEqual(d.t, i, 0, address)
	panel := pages[i].Panels[0]
	return panel, panel.QueryOf(operate.Input(parsed), nil)
}

func (d desk) look(address string) console.Block {
	d.t.Helper()
	panel, query := d.at(address)
	b, err := panel.Load(d.t.Context(), query)
	require.NoError(d.t, err)
	return b
}

// table returns the table of a page and the numbers above it.
func (d desk) table(address string) (console.Stats, console.Table) {
	d.t.Helper()
	blocks, ok := d.look(address).(console.Blocks)
	require.True(d.t, ok)
	stats, _ := blocks[0].(console.Stats)
	t, ok := blocks[1].(console.Table)
	require.True(d.t, ok, "%#v", blocks)
	return stats, t
}

func column(t console.Table, i int) (texts []string) {
	for _, row := range t.Rows {
		texts = append(texts, row[i].Text)
	}
	return texts
}

// texts are all texts of a page that are outside of a table.
func texts(b console.Block) string {
	blocks, _ := b.(console.Blocks)
	said := ""
	for _, one := range append(blocks, b) {
		if text, ok := one.(console.Text); ok {
			said += string(text) + "\n"
		}
	}
	return said
}

// A person reaches each dead letter of a group with the links of the pages. What arrives or is discarded meanwhile
// moves no page.
func TestALongGroupIsReadPageByPage(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		const n = 2*shownLetters + 5
		letters := make([]store.DeadLetter, n)
		for i := range letters {
			letters[i] = order(i)
		}
		o.put(letters...)
		o.put(payoutDeadLetter(5))
		d := o.desk()
		_, groups := d.table("dead-letters")
		require.Empty(t, groups.Next)
		first := groups.Rows[0][0].Link

		var seen []string
		address, addresses := first, []string{}
		for address != "" {
			addresses = append(addresses, address)
			_, page := d.table(address)
			seen = append(seen, column(page, 0)...)
			address = page.Next
		}
		require.Len(t, addresses, 3)
		require.Len(t, seen, n)
		require.Equal(t, []string{order(n - 1).ID, order(0).ID}, []string{seen[0], seen[n-1]})
		stats, page := d.table(addresses[0])
		require.Equal(t, "405", stats[0].Cell.Text)
		require.Equal(t, "… and 205 older ones.", page.Note)
		stored, _, err := o.store.Get(t.Context(), order(1).ID)
		require.NoError(t, err)
		require.Equal(t, link(groupPage, "fingerprint", stored.Fingerprint, "before", seen[shownLetters-1]), page.Next, "with the filter")

		stats, page = d.table(addresses[1])
		require.Equal(t, []any{"Waiting from here on", "205", first}, []any{stats[0].Name, stats[0].Cell.Text, stats[1].Cell.Link})
		before := column(page, 0)
		o.put(order(n), order(n+1))
		require.NoError(t, o.store.Discard(t.Context(), seen[shownLetters-1], store.By{Who: "ann", Why: "x"}))
		_, page = d.table(addresses[1])
		require.Equal(t, before, column(page, 0))

		require.Contains(t, texts(d.look(link(groupPage, "fingerprint", stored.Fingerprint, "before", "<absent>"))), `after the dead letter "<absent>", which no longer exists`)
		_, page = d.table(link(groupPage, "fingerprint", stored.Fingerprint, "before", order(0).ID))
		require.Equal(t, "None that was stored before waits for a person.", page.Empty)
		require.Contains(t, texts(d.look(groupPage)), "Choose a group")
	})
}

// The dead letters about a subject are a list, too, as a campaign links to it.
func TestTheDeadLettersAboutASubject(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutDeadLetter(5), payoutDeadLetter(6), order(1))
		d := o.desk()
		_, page := d.table(link(groupPage, "plugin", "payouts", "subject", "P"))
		require.Equal(t, []string{payoutDeadLetter(6).ID, payoutDeadLetter(5).ID}, column(page, 0))
		_, page = d.table(link(groupPage, "plugin", "orders", "subject", "P"))
		require.Empty(t, page.Rows)
		for n := range shownLetters {
			o.put(payoutDeadLetter(100 + n))
		}
		_, page = d.table(link(groupPage, "plugin", "payouts", "subject", "P"))
		require.Equal(t, link(groupPage, "plugin", "payouts", "subject", "P", "before", payoutDeadLetter(100).ID), page.Next)
	})
}

// A dead letter leads to the trace of its message, and what is no id of one leads nowhere.
func TestADeadLetterLeadsToItsTrace(t *testing.T) {
	t.Parallel()
	const id = "0af7651916cd43dd8448eb211c80319c"
	for text, want := range map[string]string{"00-" + id + "-b7ad6b7169203331-01": id, "00-" + id: "", "<b>": "", "": ""} {
		d := order(1)
		d.TraceParent = text
		trace := recordOf(d).Fields[13]
		require.Equal(t, []string{"Trace", text, want}, []string{trace.Name, trace.Cell.Text, trace.Cell.Trace})
	}
}

// The page of a route links to its dead letters, whose groups, letters and further pages are of this route alone.
func TestTheDeadLettersOfARoute(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), payoutDeadLetter(5))
		d := o.desk()
		stats, page := d.table(link(lettersPage, "handler", "orders.take"))
		require.Equal(t, []string{"2", "orders.take", lettersPage}, []string{stats[0].Cell.Text, stats[1].Cell.Text, stats[2].Cell.Link})
		require.Equal(t, []string{"orders.take"}, column(page, 3))
		require.Contains(t, page.Rows[0][0].Link, "handler=orders.take")
		_, letters := d.table(page.Rows[0][0].Link)
		require.Len(t, letters.Rows, 2)
		_, letters = d.table(strings.Replace(page.Rows[0][0].Link, "orders.take", "another", 1))
		require.Empty(t, letters.Rows)
		_, page = d.table(link(lettersPage, "handler", "another"))
		require.Equal(t, "No dead letter of this route waits for a person.", page.Empty)

		for n := range shownLetters + 1 {
			other := order(100 + n)
			other.Handler, other.Class = "many", fmt.Sprintf("class-%03d", n)
			o.put(other)
		}
		_, page = d.table(link(lettersPage, "handler", "many"))
		require.Len(t, page.Rows, shownLetters)
		_, page = d.table(page.Next)
		require.Equal(t, []string{"many"}, column(page, 3))
	})
}

func TestManyGroupsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		const n = shownLetters + 3
		letters := make([]store.DeadLetter, n)
		for i := range letters {
			letters[i] = order(i)
			letters[i].Handler = fmt.Sprintf("orders.take-%03d", i)
		}
		o.put(letters...)
		d := o.desk()
		_, page := d.table(lettersPage)
		require.Len(t, page.Rows, shownLetters)
		stats, rest := d.table(page.Next)
		require.Equal(t, []string{"orders.take-002", "orders.take-001", "orders.take-000"}, column(rest, 3))
		require.Empty(t, rest.Next)
		require.Equal(t, []string{"203", lettersPage}, []string{stats[0].Cell.Text, stats[1].Cell.Link})
		require.Contains(t, texts(d.look(link(lettersPage, "count", "1", "before", "absent"))), "no longer exists")
	})
}

// Two dead letters of a group are side by side, with what a record of one has. One that is gone is named.
func TestTwoDeadLettersSideBySide(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), order(3), payoutDeadLetter(5))
		d := o.desk()
		compare := func(id string) console.Cell {
			fields := d.look(link(letterPage, "id", id)).(console.Blocks)[0].(console.Record).Fields
			require.Equal(t, "Compare with", fields[len(fields)-1].Name)
			return fields[len(fields)-1].Cell
		}
		with := compare(order(2).ID)
		require.Equal(t, "the one before it in its group; the one after it in its group", with.Text)
		require.Equal(t, []string{link(comparePage, "id", order(1).ID, "id", order(2).ID), link(comparePage, "id", order(2).ID, "id", order(3).ID)},
			[]string{with.Lines[0].Link, with.Lines[1].Link}, "the older one is first")
		require.Equal(t, link(comparePage, "id", order(1).ID, "id", order(2).ID), compare(order(1).ID).Link)
		require.Equal(t, console.Word("no other is in its group"), compare(payoutDeadLetter(5).ID))

		blocks := d.look(with.Lines[0].Link).(console.Blocks)
		require.Equal(t, []string{order(1).ID, order(2).ID}, []string{blocks[0].(console.Find).Fields[0].Default, blocks[0].(console.Find).Fields[1].Default})
		both := blocks[1].(console.Comparison)
		for i, n := range []int{1, 2} {
			side := both.Sides[i]
			require.Equal(t, link(letterPage, "id", order(n).ID), side.Fields[0].Cell.Link)
			require.Equal(t, order(n).Payload, side.Folds[1].Payload, "which the console masks")
			require.Equal(t, order(n).Headers, side.Folds[0].Headers)
			names := map[string]string{}
			for _, f := range side.Fields {
				names[f.Name] = f.Cell.Text
			}
			require.Equal(t, []string{order(n).Error, "orders.take", "kafka " + order(n).Source.String(), "orders-dead", fmt.Sprint(order(n).Attempts)},
				[]string{names["Error"], names["Route"], names["From"], names["Dead-letter topic"], names["Attempts"]})
		}

		for _, address := range []string{comparePage, link(comparePage, "id", order(1).ID), link(comparePage, "id", order(1).ID, "id", order(1).ID), link(comparePage, "id", "a", "id", "b", "id", "c")} {
			require.Contains(t, texts(d.look(address)), "Give the ids of two different dead letters.")
			panel, query := d.at(address)
			require.ErrorIs(t, panel.Reveal(t.Context(), query, operate.Use{Who: "ann", Why: "x"}), console.ErrNothing)
		}
		address := link(comparePage, "id", "<gone>", "id", order(2).ID)
		require.Equal(t, "No dead letter has the id \"<gone>\". It may have been pruned.\n", texts(d.look(address)))
		panel, query := d.at(address)
		require.ErrorIs(t, panel.Reveal(t.Context(), query, operate.Use{Who: "ann", Why: "x"}), console.ErrNothing)
		_, actions, err := o.store.Get(t.Context(), order(2).ID)
		require.NoError(t, err)
		require.Empty(t, actions)
		panel, query = d.at(with.Lines[0].Link)
		require.NoError(t, panel.Reveal(t.Context(), query, operate.Use{Who: "ann", Why: "x"}))
		for _, n := range []int{1, 2} {
			_, actions, err := o.store.Get(t.Context(), order(n).ID)
			require.NoError(t, err)
			require.Len(t, actions, 1)
			require.Equal(t, []string{"reveal", "ann"}, []string{actions[0].Action, actions[0].Who})
			require.WithinDuration(t, time.Now(), actions[0].At, time.Minute)
		}
	})
}

// Without a store the pages say where the dead letters are, because a copy of all streams for each look at a page
// would cost too much.
func TestPagesWithoutAStore(t *testing.T) {
	t.Parallel()
	p := New(&topics{})
	for _, page := range p.Console() {
		b, err := page.Panels[0].Load(t.Context(), console.Query{Input: operate.Input{"id": {"a", "b"}, "fingerprint": {"x"}, "before": {"y"}}})
		require.NoError(t, err)
		require.Contains(t, texts(b), "because plugins.deadletter.store.dsn is not set")
	}
}
