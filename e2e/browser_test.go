package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	browserlog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// browser is a headless Chromium.
type browser struct{ ctx context.Context }

func startBrowser(t *testing.T) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	program := tier.Address(t, "chromium")
	// A machine without network must not wait for it.
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	return &browser{ctx}
}

// defaultBut puts a case into `make test`, or into `make test-all` if it is in rest.
func defaultBut(t *testing.T, name string, rest ...string) {
	t.Helper()
	if slices.Contains(rest, name) {
		tier.Rest(t, tier.Room, tier.Router, tier.Web)
	} else {
		tier.Default(t)
	}
}

// glance is the time between two looks at a page. Each look costs the browser CPU time.
const glance = 200 * time.Millisecond

// tab is a page in a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	blocked string // what the security policy must refuse; empty: nothing

	mu     sync.Mutex
	errors []string // of scripts, of the security policy, and in the console
}

// open opens a page in a tab of its own, with the size of a desktop or of a phone. before has what
// the tab does before.
func (b *browser) open(t *testing.T, url string, width int64, before ...chromedp.Action[chromedp.Void]) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx, append(before, chromedp.EmulateViewport(width, 740))...))
	require.NoError(t, chromedp.Listen(ctx, func(ev any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch ev := ev.(type) {
		case *runtime.EventExceptionThrown:
			p.errors = append(p.errors, (&chromedp.ExceptionError{ExceptionDetails: ev.ExceptionDetails}).Error())
		case *browserlog.EventEntryAdded:
			// A failed request is no mistake of the page.
			if ev.Entry.Source == browserlog.EntrySourceSecurity || ev.Entry.Level == browserlog.EntryLevelError && ev.Entry.Source != browserlog.EntrySourceNetwork {
				p.errors = append(p.errors, ev.Entry.Text)
			}
		case *runtime.EventConsoleAPICalled:
			p.errors = append(p.errors, fmt.Sprint("console.", ev.Type))
		}
	}))
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url)))
	t.Cleanup(func() {
		p.picture()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.blocked == "" {
			require.Empty(t, p.errors, "errors of the page")
		}
		require.Contains(t, strings.Join(p.errors, "\n"), p.blocked)
	})
	return p
}

// signedIn makes a proxy's header part of each request of a tab.
func signedIn(user string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{userHeader: user}})
		return err
	})
}

// click clicks on a visible element.
func (p *tab) click(id string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Click(chromedp.CSS("#"+id))))
}

// picture writes what the page looks like into the folder of MILLRACE_TEST_SCREENSHOTS.
func (p *tab) picture() {
	dir := os.Getenv("MILLRACE_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, filepath.Base(p.t.Name())+".png"), picture, 0o600))
}

// value evaluates a script. It does so again when another page replaces that page meanwhile.
func value[T any](p *tab, script string) T {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; pause(p.t, glance) {
		v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](script))
		const replaced = "(-32000)" // the code of errors about the state of the page
		if err != nil && strings.Contains(err.Error(), replaced) && time.Now().Before(end) {
			continue
		}
		require.NoError(p.t, err, script)
		return v
	}
}

// status is the text that a page says.
const status = `document.getElementById("status").textContent`

// says waits until the status of the page has the text.
func (p *tab) says(text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return strings.Contains(value[string](p, status), text) }, 2*time.Minute, glance,
		"the page does not say %q", text)
}

// element is an element in the tree for screen readers.
type element struct {
	id                      accessibility.NodeID
	role, name, value, live string
}

func (p *tab) tree() []element {
	p.t.Helper()
	result, err := chromedp.Run(p.ctx, func(ctx context.Context, t *chromedp.Target) (accessibility.GetFullAXTreeResult, error) {
		return cdp.Call(ctx, t, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	})
	require.NoError(p.t, err)
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		var decoded any
		require.NoError(p.t, json.Unmarshal([]byte(v.Value), &decoded))
		return fmt.Sprint(decoded)
	}
	var tree []element
	for _, n := range result.Nodes {
		if n.Ignored {
			continue
		}
		e := element{id: n.NodeID, role: text(n.Role), name: text(n.Name), value: text(n.Value)}
		if i := slices.IndexFunc(n.Properties, func(p *accessibility.Property) bool { return p.Name == accessibility.PropertyNameLive }); i >= 0 {
			e.live = text(n.Properties[i].Value)
		}
		tree = append(tree, e)
	}
	return tree
}
