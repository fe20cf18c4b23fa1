package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/sse"
)

// streamPage follows a stream that says nothing, for half an hour. Its clock is one of the test, so that only what
// the test does lets the page connect again.
const streamPage = `<!DOCTYPE html><html lang="en"><title>stream</title><body><script type="module">
%s
const real = Date.now;
window.later = 0;
Date.now = () => real() + window.later;
window.states = [];
window.stream = follow({
  address: () => "/events", names: ["a"], silence: 30 * 60000, event: () => {}, state: to => states.push(to),
});
stream.open(true);
</script></body></html>`

// followed is a server with the page and its stream, which stays open until the browser closes it.
type followed struct {
	*httptest.Server
	begun, ended atomic.Int64 // streams
}

func follow(t *testing.T) *followed {
	t.Helper()
	f := &followed{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/events" {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprintf(w, streamPage, sse.Module())
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ":\n\n")
		_ = http.NewResponseController(w).Flush()
		f.begun.Add(1)
		<-r.Context().Done()
		f.ended.Add(1)
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *followed) streams(t *testing.T, begun, ended int64) {
	t.Helper()
	require.Eventually(t, func() bool { return f.begun.Load() == begun && f.ended.Load() == ended }, time.Minute, 10*time.Millisecond,
		"%d streams have begun and %d ended: %d and %d are expected", f.begun.Load(), f.ended.Load(), begun, ended)
}

// A page that a person comes back to connects again, without waiting until its watchdog notices. Each case is red
// without the listener of its event.
func TestAPageThatIsSeenAgainConnects(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	b := startBrowser(t)
	const show = `Object.defineProperty(document, "hidden", {configurable: true, value: %t}); document.dispatchEvent(new Event("visibilitychange")); states.join()`
	for name, test := range map[string]func(t *testing.T, p *tab, f *followed){
		"visibilitychange": func(t *testing.T, p *tab, f *followed) {
			require.Equal(t, "open", value[string](p, fmt.Sprintf(show, false)), "nothing was missed")
			require.Equal(t, "open", value[string](p, `later = 20 * 60000; `+fmt.Sprintf(show, true)), "it is hidden")
			require.Equal(t, "open,silent", value[string](p, fmt.Sprintf(show, false)), "it has heard nothing for more than half of its patience")
			f.streams(t, 2, 1)
		},
		"pageshow": func(t *testing.T, p *tab, f *followed) {
			value[string](p, `dispatchEvent(new PageTransitionEvent("pagehide", {persisted: true})); ""`)
			f.streams(t, 1, 1)
			value[string](p, `dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true})); ""`)
			f.streams(t, 2, 1)
			value[string](p, `dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true})); ""`)
			value[string](p, `stream.stop(); dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true})); ""`)
			f.streams(t, 2, 2)
		},
		"online": func(t *testing.T, p *tab, f *followed) {
			value[string](p, `dispatchEvent(new Event("online")); ""`)
			f.streams(t, 2, 1)
			value[string](p, `stream.stop(); dispatchEvent(new Event("online")); ""`)
			f.streams(t, 2, 2)
		},
		"freeze and resume": func(t *testing.T, p *tab, f *followed) {
			value[string](p, `document.dispatchEvent(new Event("freeze")); ""`)
			f.streams(t, 1, 1)
			value[string](p, `document.dispatchEvent(new Event("resume")); ""`)
			f.streams(t, 2, 1)
		},
		"the watchdog": func(t *testing.T, p *tab, f *followed) {
			value[string](p, `later = 31 * 60000; ""`)
			f.streams(t, 2, 1)
			require.True(t, strings.HasPrefix(value[string](p, `states.join()`), "open,silent"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(t)
			p := b.open(t, f.URL+"/", 1000)
			require.Eventually(t, func() bool { return value[string](p, `states.join()`) == "open" }, time.Minute, glance)
			f.streams(t, 1, 0)
			test(t, p, f)
		})
	}
}
