package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// axeFile is axe-core as npm has it, which examines a page for what people with disabilities can't use.
const axeFile = "testdata/axe/axe.min.js"

// axe returns the script, whose sum is in the file beside it.
func axe(t *testing.T) string {
	t.Helper()
	script, err := os.ReadFile(axeFile)
	require.NoError(t, err)
	want, err := os.ReadFile(axeFile + ".sha256")
	require.NoError(t, err)
	sum := sha256.Sum256(script)
	require.Equal(t, strings.Fields(string(want))[0], hex.EncodeToString(sum[:]), "%s is not the file of that release", axeFile)
	return string(script)
}

// examined runs all rules of axe-core. The result has a line for each element that violates one.
const examined = `axe.run({resultTypes: ["violations"]}).then((found) => found.violations.flatMap((rule) =>
	rule.nodes.map((node) => rule.id + ": " + node.target.join(" ") + " " + node.html.slice(0, 200) + " " + node.failureSummary)))`

// looks are the sizes and colours in which people see a page.
var looks = []struct {
	width  int64
	scheme string
}{{1280, "light"}, {1280, "dark"}, {360, "dark"}, {360, "light"}}

// colours makes a tab prefer light or dark ones.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// accessible examines the page as it is, on a desktop and on a phone, in light and in dark colours.
func (p *tab) accessible(what string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Evaluate[chromedp.Void](axe(p.t))))
	for _, look := range looks {
		require.NoError(p.t, chromedp.Do(p.ctx, colours(look.scheme), chromedp.EmulateViewport(look.width, 740)))
		found, err := chromedp.Run(p.ctx, chromedp.Evaluate[[]string](examined, chromedp.EvalAwaitPromise))
		require.NoError(p.t, err)
		if width := value[int64](p, `document.scrollingElement.scrollWidth`); width > look.width {
			found = append(found, fmt.Sprintf("it is %d px wide", width))
		}
		for _, violation := range found {
			p.t.Errorf("%s, in a window of %d px, %s: %s", what, look.width, look.scheme, violation)
		}
	}
}
