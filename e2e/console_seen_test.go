package e2e

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

const desktop = 1280

// A person with a browser does what the console is for: finds one effect, pauses and resumes a group whose books
// balance, replays dead letters, and reads why something is not in order. Everybody can use each page. The
// tasks share a process. The last one stops its Kafka.
func TestAPersonAtTheConsole(t *testing.T) {
	tier.Rest(t, tier.Pipeline, tier.Promotion, tier.DeadLetter, tier.Kafka, tier.CLI)
	t.Parallel()
	b := startBrowser(t)
	s := startShop(t)
	for _, task := range []struct {
		name string
		do   func(*testing.T, *browser, *shop)
	}{
		{"finds one effect by its key", findsAnEffect},
		{"pauses and resumes a group whose books balance", pausesAGroup},
		{"replays dead letters", replaysDeadLetters},
		{"reads why nothing is called", readsWhyNothingIsCalled},
		{"sees in the graph that a far side is down", seesThatAFarSideIsDown},
		{"sees how the last minutes went", seesTheLastMinutes},
		{"needs no scripts", needsNoScripts},
		{"uses each page", usesEachPage},
		{"sees each page without scripts", seesEachPagePlain},
		{"has pictures of it", hasPictures},
		{"loads little", loadsLittle},
		{"sees an action run", seesAnActionRun},
		{"reads why the graph is red", readsWhyTheGraphIsRed},
	} {
		t.Run(task.name, func(t *testing.T) {
			s.t = t
			defer s.far.set(func(f *farSide) { f.broken, f.refusing = false, false })
			task.do(t, b, s)
		})
	}
}

func findsAnEffect(t *testing.T, b *browser, s *shop) {
	s.invoiced("acme", 1, 2)
	p := b.open(t, s.url+"/", desktop)
	p.follows(menu("Effects"), "Effects")
	p.fills("#find input[name=kind]", "invoice")
	p.fills("#find input[name=group]", "acme")
	p.fills("#find input[name=id]", "2")
	p.follows(button("Show"), "Effect")
	p.reads("#effect dd.ok", "success")
	p.reads("#effect dd", "invoice:acme:2")
	p.reads("#effect table", "send 1")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Click(`//summary[normalize-space()="Request"]`)))
	p.reads("#effect pre", `"cents":200`)
}

// While its group is paused nothing is called for, and the books show what waits.
func pausesAGroup(t *testing.T, b *browser, s *shop) {
	s.invoiced("zeta", 1, 2, 3)
	p := b.open(t, s.url+"/effects", desktop)
	p.follows(link("zeta"), "Group of effects")
	p.reads("#group .checks", "accepted 3 = ended 3 + open 0")
	p.acts("once pause", "invoice zeta is RUNNING", "they change their bank")
	p.reads("main", "No call starts any more; none is being called.")
	s.orders("zeta", 4, 5)
	p.follows(menu("Effects"), "Effects")
	p.follows(link("zeta"), "Group of effects")
	p.reads("#group .stats dd.warn", "paused")
	p.reads("#group .checks", "accepted 5 = ended 3 + open 2")
	require.Equal(t, "ok", value[string](p, `document.querySelector("#group .checks .level").innerText`))
	// Another group is called for meanwhile, so the workers have looked for work.
	s.invoiced("acme", 20)
	require.Zero(t, s.far.did(invoiceKey("zeta", 4)), "the group is paused")
	home := b.open(t, s.url+"/", desktop)
	home.reads("#conditions td.warn", "1 group is paused, which holds effects back")
	home.reads("#routes td.warn", "kind invoice: 1 group is paused")
	p.acts("once resume", "invoice zeta is PAUSED", "they have a new bank")
	s.reached(invoiceKey("zeta", 4))
	s.reached(invoiceKey("zeta", 5))
	p.follows(menu("Effects"), "Effects")
	p.follows(link("zeta"), "Group of effects")
	p.reads("#group .stats", "running")
	p.reads("#group .checks", "accepted 5 = ended 5 + open 0")
	home.reads("#conditions", nothingIsWrong)
	home.follows(menu("Effects"), "Effects")
}

const nothingIsWrong = "every far side works, nothing is paused"

// The far side refuses the webhooks of two orders. Its owner corrects that, and a person replays both.
func replaysDeadLetters(t *testing.T, b *browser, s *shop) {
	s.far.set(func(f *farSide) { f.refusing = true })
	s.send("orders", `{"order":1}`, `{"order":2}`)
	p := b.open(t, s.url+"/", desktop)
	p.reads("#graph .step.warn .why", "dead letters wait for a person")
	p.follows(menu("Dead letters"), "Dead letters")
	p.reads("#groups dd", "2")
	s.far.set(func(f *farSide) { f.refusing = false })
	p.reads("#groups td", "answered 403 Forbidden")
	p.follows(`//section[@id="groups"]//td[1]/a`, "Dead letters of one group")
	p.acts("deadletter replay", "2 dead letters: 2 would be replayed", "the far side knows our signature")
	p.reads("main", "2 dead letters: 2 replayed")
	s.reached(`{"order":1}`)
	s.reached(`{"order":2}`)
	p.follows(menu("Dead letters"), "Dead letters")
	p.reads("#groups", "No dead letter waits for a person.")
}

// The far side breaks, and the page of the kind says so while somebody looks at it, without a reload. The page of
// an effect has the words of the far side.
func readsWhyNothingIsCalled(t *testing.T, b *browser, s *shop) {
	p := b.open(t, s.url+"/effects", desktop)
	p.reads("#kinds td.ok", "calls")
	s.far.set(func(f *farSide) { f.broken = true })
	s.orders("brot", 1, 2, 3, 4, 5)
	s.send("orders", `{"order":3}`)
	p.reads("#kinds td.warn", "calls nothing, because its client says that the far side would not be called now")
	home := b.open(t, s.url+"/", desktop)
	home.reads("#routes td", "some messages failed and wait for a retry")
	p.follows(link("brot"), "Group of effects")
	p.reads("#group .checks", "accepted 5 = ended 0 + open 5")
	one := b.open(t, s.url+"/effects/effect?"+url.Values{"kind": {"invoice"}, "group": {"brot"}, "id": {"1"}}.Encode(), desktop)
	one.reads("#effect td", "the database of invoices is down")
	s.far.set(func(f *farSide) { f.broken = false })
	p.reads("#group .checks", "accepted 5 = ended 5 + open 0")
	s.reached(`{"order":3}`)
}

// The chart of a route has what was handled and what failed while nobody looked.
func seesTheLastMinutes(t *testing.T, b *browser, s *shop) {
	p := b.open(t, s.url+"/route?route=webhook", desktop)
	p.reads("#history th.key", "failed")
	p.reaches("lines", `[...document.querySelectorAll("#history .line")].filter((line) => line.getTotalLength() > 0).length === 2`)
	p.reaches("a failure", `parseFloat(document.querySelector("#history tbody tr:nth-child(2) td:nth-child(3)")?.innerText) > 0`)
	home := b.open(t, s.url+"/", desktop)
	home.reads("#history th.key", "invoice.accept")
	home.enters(`#graph a[data-id="route webhook"]`, "Route")
	home.reads("#route td", "webhook")
	out, code := s.command("", "top", "--url", s.url, "--once")
	require.Zero(t, code, out)
	require.Regexp(t, `(?m)^Messages handled per second:$`, out)
}

// The far side of two routes breaks. Its box is red and says since when, what it answered and what happens next, as do
// the routes, the terminal and the commands. After the repair nothing is red, and nobody has done anything here.
func seesThatAFarSideIsDown(t *testing.T, b *browser, s *shop) {
	p := b.open(t, s.url+"/", desktop)
	p.reaches("a graph without red", `document.querySelector("#graph .box") !== null && document.querySelector("#graph .box.fail") === null`)
	p.reads("#conditions", nothingIsWrong)
	s.far.set(func(f *farSide) { f.broken = true })
	s.orders("korn", 1, 2, 3, 4, 5)
	p.reads("#graph .place.fail .why", "it is not called since")
	p.reaches("the whole sentence for a screen reader", `[...document.querySelectorAll("#graph .place.fail title")].some((e) => /^server http:.*, fail: it is not called since .*the breaker is open.*the database of invoices is down.*finds out whether it works again/.test(e.textContent))`)
	require.Equal(t, "rgb(164, 14, 38)", value[string](p, `getComputedStyle(document.querySelector("#graph .place.fail rect")).stroke`))
	p.reads("#conditions td.fail", "the database of invoices is down")
	p.reads("#conditions td", "calls begin again by themselves")
	p.reads("#routes td.fail", "API invoice: it is not called since")
	p.rests()
	p.accessible("the pipeline without a far side")
	for _, args := range [][]string{{"routes"}, {"routes", "--json"}, {"top", "--once"}} {
		require.Eventually(t, func() bool { // a probe is under way at times
			out, _ := s.command("", args...)
			return strings.Contains(out, "it is not called since")
		}, 2*time.Minute, glance, "%v does not say it", args)
	}
	s.far.set(func(f *farSide) { f.broken = false })
	for n := range 5 {
		s.reached(invoiceKey("korn", n+1))
	}
	p = b.open(t, s.url+"/", desktop)
	p.reads("#conditions", nothingIsWrong)
	p.reaches("a graph without red", `document.querySelector("#graph .box") !== null && document.querySelector("#graph .box.fail, #graph .place.warn") === null`)
	p.reads("#graph .place.ok .why", "it answers")
	out, _ := s.command("", "routes")
	require.NotContains(t, out, "it is not called since")
}

// Kafka ends. The graph is red, and says why in words, as does the table below it.
func readsWhyTheGraphIsRed(t *testing.T, b *browser, s *shop) {
	p := b.open(t, s.url+"/", desktop)
	p.reaches("a graph without red", `document.querySelector("#graph .step") !== null && document.querySelector("#graph .step.fail") === null`)
	require.NoError(t, s.kafka.Stop(context.Background()))
	p.reads("#graph .step.fail .why", "not known, because kafka does")
	p.reaches("the whole sentence for a screen reader", `[...document.querySelectorAll("#graph .step.fail title")].some((e) => e.textContent.startsWith("route webhook, fail: not known, because kafka does not answer"))`)
	p.reads("#routes td.fail", "not known, because kafka does not answer")
	p.reads("#routes .checks", "failure kafka: ")
	p.reads("#routes .checks .remedy", "To do: the page Doctor examines the server.")
	require.Equal(t, "rgb(164, 14, 38)", value[string](p, `getComputedStyle(document.querySelector("#graph .step.fail rect")).stroke`))
	p.rests()
	p.accessible("the pipeline without Kafka")
}

// rests stops the updates of a live page, so that it is examined as it is.
func (p *tab) rests() {
	p.t.Helper()
	value[bool](p, `document.querySelector("#read button")?.click(), true`)
}

// usesEachPage examines the pages of the navigation, those of one group, effect and dead letter, what is found
// nowhere, and each step of an action.
func usesEachPage(t *testing.T, b *browser, s *shop) {
	s.far.set(func(f *farSide) { f.refusing = true })
	s.invoiced("acme", 30)
	s.send("orders", `{"order":4}`, `{"order":5}`, `{"order":6}`, `{"order":7}`)
	p := b.open(t, s.url+"/", desktop)
	examine := func(what string) {
		t.Helper()
		p.rests()
		p.accessible(what)
		require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(desktop, 740)))
	}
	visit := func(address string) {
		t.Helper()
		require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(address)))
		require.NotEmpty(t, value[string](p, `document.querySelector("h1").innerText`), address)
		examine(strings.TrimPrefix(address, s.url))
	}
	const links = `[...document.querySelectorAll(%q)].map((a) => a.href)`
	pages := value[[]string](p, fmt.Sprintf(links, "nav a"))
	require.Greater(t, len(pages), 8)
	for _, address := range pages {
		visit(address)
	}
	actions := value[[]string](p, fmt.Sprintf(links, "main td a")) // the page Actions is the last one
	require.Greater(t, len(actions), 5)
	for _, address := range actions {
		visit(address)
	}
	for _, address := range []string{"/none", "/effects/group?kind=invoice&group=acme", "/effects/effect?kind=invoice&group=acme&id=30", "/effects/effect", "/route?route=webhook", "/audit/log?log=dead-letters", "/stream"} {
		visit(s.url + address)
	}
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(s.url+"/dead-letters")))
	p.follows(`//section[@id="groups"]//td[1]/a`, "Dead letters of one group")
	examine("the dead letters of a group")
	p.follows(link("deadletter replay"), "deadletter replay")
	p.submits("Preview")
	p.reads("main", "4 dead letters: 4 would be replayed")
	examine("a preview of many")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(s.url+"/dead-letters")))
	p.follows(`//section[@id="groups"]//td[1]/a`, "Dead letters of one group")
	p.follows(`//section[@id="letters"]//td[1]/a`, "Dead letter")
	value[bool](p, `document.querySelectorAll("details").forEach((fold) => { fold.open = true; }), true`)
	examine("a dead letter")
	letter := value[string](p, `location.href`)
	p.follows(link("the one before it in its group"), "Two dead letters")
	p.reads("#letters td", "differs")
	examine("two dead letters")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(letter)))
	p.follows(link("deadletter discard"), "deadletter discard")
	p.submits("Preview")
	examine("a preview")
	p.fills("#why", "a test")
	p.fills("#confirm", "discard")
	p.submits("Do it: deadletter discard")
	p.reads("[role=alert]", "confirm must be deadletter discard")
	examine("a confirmation that is refused")
	p.fills("#confirm", "deadletter discard")
	p.submits("Do it: deadletter discard")
	p.reads("[role=status]", "done")
	examine("what was done")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(s.url+"/doctor")))
	p.submits("Run")
	p.reads("#doctor", "process memory")
	examine("what the doctor says")
}

// loadsLittle opens a page with its longest table for the first time. A browser loads at most 150 kB of it, if a
// proxy compresses what the console sends. What the table has no place for is on the next page, also without scripts.
func loadsLittle(t *testing.T, b *browser, s *shop) {
	const rows, limit = 200, 150_000
	s.far.set(func(f *farSide) { f.refusing = true })
	var orders []string
	for n := range rows + 1 {
		orders = append(orders, fmt.Sprintf(`{"order":%d}`, 1000+n))
	}
	s.send("orders", orders...)
	p := b.open(t, s.url+"/dead-letters", desktop)
	p.reaches("all dead letters", fmt.Sprintf(`Number(document.querySelector("#groups dd")?.innerText) > %d`, rows))
	p.follows(`//section[@id="groups"]//tr[contains(., "403")]/td[1]/a`, "Dead letters of one group")
	p.reaches("the rows of a page", fmt.Sprintf(`document.querySelectorAll("tbody tr").length === %d`, rows))
	loaded := value[[]string](p, `[location.href, ...performance.getEntriesByType("resource").filter((one) => one.initiatorType !== "fetch").map((one) => one.name)]`)
	require.Len(t, loaded, 3, "the page, its style sheet and its script: %v", loaded)
	sum := 0
	for _, address := range loaded {
		answer, err := http.Get(address) //nolint:gosec // an address of the console
		require.NoError(t, err)
		var small countingWriter
		compressed := gzip.NewWriter(&small)
		_, err = io.Copy(compressed, answer.Body)
		require.NoError(t, err)
		require.NoError(t, errors.Join(answer.Body.Close(), compressed.Close()))
		require.Equal(t, http.StatusOK, answer.StatusCode, address)
		sum += int(small)
	}
	t.Logf("%d bytes", sum)
	require.Less(t, sum, limit, "bytes of %v", loaded)
	require.Greater(t, sum, 4000)
	plain := b.open(t, value[string](p, `location.href`), desktop, withoutScripts())
	last := value[string](plain, `[...document.querySelectorAll("#letters td:first-child")].at(-1).innerText`)
	plain.follows(link("More rows"), "Dead letters of one group")
	plain.reads("#letters dt", "Waiting from here on")
	require.Contains(t, value[string](plain, `location.search`), "before="+last)
	plain.follows(link("first page"), "Dead letters of one group")
	plain.reads("#letters dt", "Waiting for a person")
}

// countingWriter counts bytes.
type countingWriter int

func (w *countingWriter) Write(b []byte) (int, error) {
	*w += countingWriter(len(b))
	return len(b), nil
}
