package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/console"
)

// counter is a plugin with a page whose numbers grow with each read, so that a section which is replaced
// differs from the one before.
type counter struct{ numbers, find, asked atomic.Int64 }

func (*counter) Name() string                          { return "counter" }
func (c *counter) Register(r *pipeline.Registry) error { r.Offer(c); return nil }

func (c *counter) Console() []pages.Page {
	count := func(n *atomic.Int64, more ...pages.Block) func(context.Context, pages.Query) (pages.Block, error) {
		return func(context.Context, pages.Query) (pages.Block, error) {
			return append(pages.Blocks{pages.Stats{{Name: "Reads", Cell: pages.Count(n.Add(1))}}}, more...), nil
		}
	}
	return []pages.Page{{Path: "counter", Title: "Counter", Panels: []pages.Panel{
		{Name: "numbers", Title: "Numbers", Load: count(&c.numbers, pages.Record{Folds: []pages.Fold{{Title: "Payload", Text: "folded"}}})},
		{Name: "find", Title: "Find", Load: count(&c.find, pages.Find{Page: "counter", Fields: []operate.Field{{Name: "id"}}})},
		{Name: "asked", Title: "Asked", Asked: true, Load: count(&c.asked)},
	}}}
}

// startConsole starts a console in this process. configure may be nil.
func startConsole(t *testing.T, configure func(*console.Config), plugins ...pipeline.Plugin) (address string) {
	t.Helper()
	c := console.New()
	config := c.Settings().(*console.Config)
	config.Listen = "127.0.0.1:0"
	if configure != nil {
		configure(config)
	}
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "tried"}, append(plugins, c)...)
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{})
	require.NoError(t, runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, runtime.Stop(context.Background())) })
	return "http://" + c.Addr()
}

// consolePrefix is the path below which proxied shows a console.
const consolePrefix = "/ops/millrace"

// proxied starts a proxy that shows a console below a path, and removes the path. What is stored in the pointer
// answers in its place.
func proxied(t *testing.T, console string) (address string, instead *atomic.Pointer[http.HandlerFunc]) {
	t.Helper()
	to, err := url.Parse(console)
	require.NoError(t, err)
	instead = &atomic.Pointer[http.HandlerFunc]{}
	forward := http.StripPrefix(consolePrefix, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if other := instead.Load(); other != nil {
			(*other)(w, r)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL + consolePrefix, instead
}

// reaches waits until a script is true.
func (p *tab) reaches(what, script string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return value[bool](p, script) }, 2*time.Minute, glance, what)
}

// moves waits until the text of an element of the page has been replaced.
func (p *tab) moves(selector string) {
	p.t.Helper()
	before := value[string](p, fmt.Sprintf(`document.querySelector(%q).innerText`, selector))
	p.reaches("another text of "+selector, fmt.Sprintf(`document.querySelector(%q).innerText !== %q`, selector, before))
}

// stays checks that the text of an element remains while the rest of the page is read twice more.
func (p *tab) stays(selector, others, why string) {
	p.t.Helper()
	before := value[string](p, fmt.Sprintf(`document.querySelector(%q).innerText`, selector))
	p.moves(others)
	p.moves(others)
	require.Equal(p.t, before, value[string](p, fmt.Sprintf(`document.querySelector(%q).innerText`, selector)), why)
}

func typed(text string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: text})
		return err
	})
}

// A page of the console reads itself again without a reload. What a person uses stays as it is, and a console
// that does not answer is named with the age of what is shown.
func TestTheConsoleReadsItselfAgain(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	x := &counter{}
	address, between := proxied(t, startConsole(t, func(c *console.Config) { c.Prefix = consolePrefix }, x))
	p := startBrowser(t).open(t, address+"/counter", 1280)
	const numbers, find = "#numbers .stats dd", "#find .stats dd"
	value[bool](p, `window.here = document.querySelector("#asked"), true`)
	p.moves(numbers)
	p.moves(find)
	require.True(t, value[bool](p, `window.here === document.querySelector("#asked")`), "the same document, and the panel that nobody has asked for")
	require.Zero(t, x.asked.Load())

	// A fold stays open, and a place in a text selected.
	value[bool](p, `document.querySelector("#numbers details").open = true`)
	p.moves(numbers)
	require.True(t, value[bool](p, `document.querySelector("#numbers details").open`))
	value[bool](p, `getSelection().selectAllChildren(document.querySelector("#numbers h2")), true`)
	p.stays(numbers, find, "a text of the section is selected")
	require.Equal(t, "Numbers", value[string](p, `getSelection().toString()`))
	require.Contains(t, value[string](p, `getComputedStyle(document.querySelector("#numbers h2"), "::after").content`), "not updated")
	value[bool](p, `getSelection().removeAllRanges(), true`)
	p.moves(numbers)
	require.Equal(t, "none", value[string](p, `getComputedStyle(document.querySelector("#numbers h2"), "::after").content`))

	// Somebody types, and then looks elsewhere.
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Click(chromedp.CSS("#find input")), typed("order-7")))
	p.stays(find, numbers, "somebody types")
	value[bool](p, `document.activeElement.blur(), true`)
	p.stays(find, numbers, "a field is filled in")
	require.Equal(t, "order-7", value[string](p, `document.querySelector("#find input").value`))
	value[bool](p, `document.querySelector("#find input").value = "", true`)
	p.moves(find)
	value[bool](p, `document.querySelector("#find button").focus(), true`)
	p.stays(find, numbers, "a button has the focus")
	value[bool](p, `document.activeElement.blur(), document.querySelector("#read a").focus(), true`)
	p.moves("#read span")
	require.True(t, value[bool](p, `document.activeElement === document.querySelector("#read a")`), "the link Reload keeps the focus")

	// Nothing is read for a tab that nobody sees, and for one whose updates are paused. The panels are read at
	// most once a second for others, so four of their reads are more than the two seconds between two of a tab.
	value[bool](p, `window.asks = 0, window.ask = window.fetch, window.fetch = (...all) => { window.asks++; return window.ask(...all) }, true`)
	p.reaches("a read of a tab that is seen", `window.asks > 0`)
	rests := func(why string) {
		t.Helper()
		before, reads := value[int64](p, `window.asks`), x.numbers.Load()
		require.Eventually(t, func() bool {
			answer, err := http.Get(address + "/counter")
			return err == nil && answer.Body.Close() == nil && x.numbers.Load() >= reads+4
		}, 2*time.Minute, glance)
		require.Equal(t, before, value[int64](p, `window.asks`), why)
	}
	goesOn := func(do string) {
		t.Helper()
		before := value[int64](p, `window.asks`)
		value[bool](p, do)
		p.reaches("a read after "+do, fmt.Sprintf(`window.asks > %d`, before))
	}
	const hide = `Object.defineProperty(document, "hidden", {configurable: true, value: %t}), document.dispatchEvent(new Event("visibilitychange"))`
	const press = `document.querySelector("#read button").click(), true`
	value[bool](p, fmt.Sprintf(hide, true))
	rests("nobody sees the tab")
	goesOn(fmt.Sprintf(hide, false))
	value[bool](p, press)
	require.Equal(t, "Resume updates", value[string](p, `document.querySelector("#read button").innerText`))
	rests("the updates are paused")
	goesOn(press)

	// A console that can't be read is named with the age of what is shown, and what is shown stays.
	for problem, broken := range map[string]http.HandlerFunc{
		"it answers with the status 502":                                             func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"the answer is no page of the console, such as one that asks you to sign in": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<h1>Sign in</h1>") },
	} {
		between.Store(&broken)
		p.reaches(problem, fmt.Sprintf(`document.querySelector(".problem")?.innerText.startsWith("The console can't be read: %s. It is tried again. What is shown is ") ?? false`, problem))
		p.moves(".problem")
		require.NotEmpty(t, value[string](p, fmt.Sprintf(`document.querySelector(%q).innerText`, numbers)))
		between.Store(nil)
		p.reaches("the end of the problem", `document.querySelector(".problem") === null`)
		p.moves(numbers)
	}
}
