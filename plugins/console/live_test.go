package console_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pages "github.com/millrace-io/millrace/pipeline/console"
)

// What is read with the page is marked, so that the script reads it again. What costs too much is not, and
// neither a form nor its outcome is replaced while a person looks at it.
func TestWhatIsLive(t *testing.T) {
	t.Parallel()
	asked := loading("costly", pages.Text("x"), nil)
	asked.Asked = true
	r := start(t, nil, page(loading("cheap", pages.Text("x"), nil), asked), newTill())
	text := r.get("/tried")
	require.Contains(t, text, `<section id="cheap" data-live `)
	require.Contains(t, text, `<section id="costly" aria-labelledby`)
	require.Contains(t, text, `<p class="note" id="read"><span>Read by instance rig at `)
	require.Regexp(t, `<script type="module" src="/assets/live-[0-9a-f]+\.js"></script>`, text)
	_, text = r.do(http.MethodPost, "/tried", "panel=costly")
	require.Contains(t, text, `<section id="costly" aria-labelledby`, "an answer that was asked for stays")
	for _, path := range []string{"/actions", "/actions/till/refund"} {
		require.NotContains(t, r.get(path), "<script", path)
	}
}

// Many tabs cost the servers what one does: a panel is read at most once a second.
func TestTabsShareTheirReads(t *testing.T) {
	t.Parallel()
	var read atomic.Int64
	counted := func(name string) pages.Panel {
		return pages.Panel{Name: name, Title: name, Load: func(context.Context, pages.Query) (pages.Block, error) {
			read.Add(1)
			return pages.Text("x"), nil
		}}
	}
	r := start(t, nil, page(counted("one"), counted("two")))
	began := time.Now()
	const tabs, rounds = 50, 4
	for range rounds {
		var open sync.WaitGroup
		for range tabs {
			open.Go(func() { r.get("/tried") })
		}
		open.Wait()
	}
	seconds := int64(time.Since(began)/time.Second) + 1
	require.LessOrEqual(t, read.Load(), 2*seconds, "%d reads by %d tabs", tabs*rounds, tabs)
	require.NotZero(t, read.Load())
}
