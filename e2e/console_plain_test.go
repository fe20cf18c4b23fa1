package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// A browser without scripts finds an effect, pauses and resumes a group, and replays dead letters: each form is
// filled in, previewed and sent. Each page that such a person comes to says what it says with scripts.
func needsNoScripts(t *testing.T, b *browser, s *shop) {
	s.invoiced("plain", 1, 2)
	s.far.set(func(f *farSide) { f.refusing = true })
	s.send("orders", `{"order":21}`, `{"order":22}`)
	p := b.open(t, s.url+"/effects", desktop, withoutScripts())
	p.rereads(s.url+"/effects", "#groups td", "plain")
	p.fills("#find input[name=kind]", "invoice")
	p.fills("#find input[name=group]", "plain")
	p.fills("#find input[name=id]", "2")
	p.follows(button("Show"), "Effect")
	effect := value[string](p, `location.href`)
	b.showsPlain(t, effect, "#effect dd.ok", "success")

	group := s.url + "/effects/group?kind=invoice&group=plain"
	p.rereads(group, "#group .checks", "accepted 2 = ended 2 + open 0")
	p.acts("once pause", "invoice plain is RUNNING", "they change their bank")
	p.reads("main", "No call starts any more; none is being called.")
	b.showsPlain(t, group, "#group .stats dd.warn", "paused")
	b.showsPlain(t, s.url+"/route?route=webhook", "#route td", "webhook")
	p.rereads(group, "#group .stats dd.warn", "paused")
	p.acts("once resume", "invoice plain is PAUSED", "they have a new bank")
	p.rereads(group, "#group .stats dd", "running")

	letters := s.url + "/dead-letters"
	p.rereads(letters, "#groups td", "answered 403 Forbidden")
	p.follows(`//section[@id="groups"]//tr[contains(., "403")]/td[1]/a`, "Dead letters of one group")
	ofGroup := value[string](p, `location.href`)
	b.showsPlain(t, ofGroup, "#letters td", "webhook")
	p.follows(`//section[@id="letters"]//td[1]/a`, "Dead letter")
	b.showsPlain(t, value[string](p, `location.href`), "#letter dd", "answered 403 Forbidden")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Click(`//summary[normalize-space()="Payload"]`)))
	p.reads("#letter pre", `{"order":2`)
	p.follows(link("the one before it in its group"), "Two dead letters")
	b.showsPlain(t, value[string](p, `location.href`), "#letters td", "differs")
	s.far.set(func(f *farSide) { f.refusing = false })
	p.rereads(ofGroup, "#letters td", "webhook")
	p.acts("deadletter replay", "2 dead letters: 2 would be replayed", "the far side knows our signature")
	p.rereads(value[string](p, `location.href`), "main", "2 dead letters: 2 replayed")
	for _, order := range []int{21, 22} {
		s.reached(fmt.Sprintf(`{"order":%d}`, order))
	}
	b.showsPlain(t, s.url+"/audit/log?log=dead-letters", "main td", "the far side knows our signature")
}

// An action that takes long is examined while it runs, and after somebody has stopped it.
func seesAnActionRun(t *testing.T, b *browser, s *shop) {
	p := b.open(t, s.url+"/dead-letters", desktop)
	p.follows(`//section[@id="groups"]//tr[contains(., "403")]/td[1]/a`, "Dead letters of one group")
	p.follows(link("deadletter replay"), "deadletter replay")
	p.fills(`[name="in.rate"]`, "1") // a letter a second, so that it does not end by itself
	p.submits("Preview")
	p.confirms("deadletter replay", "a test")
	p.reads("[role=status]", "It still runs.")
	value[bool](p, `window.here = true`)
	p.moves("#use")
	require.True(t, value[bool](p, `window.here`), "with scripts the page is not loaded again, which would take the place of a reader away")
	p.rests()
	p.accessible("an action that runs")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(desktop, 740)))
	value[bool](p, `document.querySelector("#read button").click(), fetch(document.querySelector("form[action$='/stop']").action, {method: "POST"}), true`)
	p.reads("main", "not all was done")
	p.reaches("the end of the updates", `window.here && document.querySelector("#read button") === null`)
	p.accessible("an action that was stopped")
}
