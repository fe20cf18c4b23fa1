package e2e

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// withoutScripts makes a tab run no script of its pages.
func withoutScripts() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	})
}

// showsPlain opens a page on a phone that runs no scripts, and again until a person can read a text in it, because
// such a page does not read itself again.
func (b *browser) showsPlain(t *testing.T, address, selector, text string) {
	t.Helper()
	p := b.open(t, address, 360, withoutScripts())
	p.rereads(address, selector, text)
	require.LessOrEqual(t, value[int64](p, `document.documentElement.scrollWidth`), int64(360), "%s is wider than the window", address)
}

// rereads opens a page until a person can read a text in an element of it.
func (p *tab) rereads(address, selector, text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		if value[bool](p, readable(selector, text)) {
			return true
		}
		p.opens(address)
		return false
	}, 2*time.Minute, glance, "%q is not in %s of %s:\n%s", text, selector, address, content{p})
}

// The console of the embedded profile is found with the command open, and a browser without scripts shows
// its home page, on a desktop and on a phone, without anything that the security policy refuses.
func TestTheConsoleNeedsNoScripts(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	bin := binary(t)
	b := startBrowser(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var printed pipelinetest.Buffer
	command := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, bin, args...)
		c.Env = append(os.Environ(), "MILLRACE__DATA_DIR="+t.Name(), "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0", "MILLRACE__PLUGINS__CONSOLE__LISTEN=127.0.0.1:0")
		return c
	}
	dir := t.TempDir()
	run := command("run", "--profile", "embedded")
	run.Dir, run.Stdout, run.Stderr = dir, &printed, &printed
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		cancel()
		_ = run.Wait() // the interrupt is its end
	})
	var address string
	require.Eventually(t, func() bool {
		open := command("open", "--profile", "embedded")
		open.Dir = dir
		out, err := open.Output()
		address = strings.TrimSpace(string(out))
		return err == nil && strings.HasPrefix(address, "http://127.0.0.1:")
	}, 2*time.Minute, 200*time.Millisecond, "the command open finds no console: %s", &printed)

	answer, err := http.Get(address)
	require.NoError(t, err)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 1, strings.Count(string(text), "<script"), "the page has one script, and it is a file")
	for _, width := range []int64{1280, 360} {
		p := b.open(t, address, width, withoutScripts())
		require.Equal(t, "Pipeline", value[string](p, `document.querySelector("h1").innerText`))
		require.Contains(t, value[string](p, `document.querySelector("#routes").innerText`), "promotion.point.accept")
		require.Equal(t, "600", value[string](p, `getComputedStyle(document.querySelector("nav a[aria-current]")).fontWeight`), "the style sheet is in use")
		require.LessOrEqual(t, value[int64](p, `document.documentElement.scrollWidth`), width, "the page is wider than the window")
	}

	// Each page fits a phone, also without scripts.
	home := b.open(t, address, 360, withoutScripts())
	links := value[[]string](home, `[...document.querySelectorAll("nav a")].map((link) => link.href)`)
	require.Contains(t, links, address+"settings")
	require.Contains(t, links, address+"actions")
	for _, link := range links {
		p := b.open(t, link, 360, withoutScripts())
		require.NotEmpty(t, value[string](p, `document.querySelector("h1").innerText`))
		require.LessOrEqual(t, value[int64](p, `document.documentElement.scrollWidth`), int64(360), "%s is wider than the window", link)
	}
	b.showsPlain(t, address+"settings", "#defaults td", "publish_timeout")
	require.Len(t, b.seesThePagesPlain(t, strings.TrimSuffix(address, "/"), nil, "settings"), 1)
}
