package e2e

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// The page of a job whose connection is silent. No other process has
// shards of this Redis: one that is killed would delay their events.
func TestThePageOfAJobNoticesSilence(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	jobs := &jobsOf{t: t, addr: servers.RedisAddr(), client: goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})}
	t.Cleanup(func() { require.NoError(t, jobs.client.Close()) })
	s := startJobs(t, jobs.addr, "silence", briefHeartbeat)
	for name, test := range map[string]func(t *testing.T, b *browser, jobs *jobsOf, s *service){
		"a silent connection": watchPageLeavesASilentConnection,
		"seven tabs":          sevenTabsOfAJobShareAStream,
		"one refusal":         watchPageOutlivesARefusal,
		"a frozen tab":        aFrozenTabOfAJobShowsEachEventOnce,
		"a tab unanswered":    aTabThatKnowsNothingTakesOver,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b, jobs, s)
		})
	}
}

// The connection is lost without a word to the browser. The page says so, and connects again.
func watchPageLeavesASilentConnection(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	f := newForwarder(t, s.url)
	p := b.open(t, f.url()+"/jobs/scan/silent/watch", 1000)
	jobs.add("silent", 1, 3)
	p.shows(3)
	value[bool](p, `(() => {
  window.said = [];
  new MutationObserver(() => said.push(document.getElementById("status").textContent)).observe(document.getElementById("status"), {childList: true, characterData: true, subtree: true});
  return true;
})()`)
	before := f.connections()
	f.lose(s.url)
	jobs.add("silent", 4, 6)
	p.shows(6)
	require.Contains(t, value[[]string](p, "said"), "Connection lost, connecting again… Stage: scan, running.")
	require.Greater(t, f.connections(), before)
	p.says("Connected. Stage: scan, running.")
	jobs.add("silent", 7, 10)
	p.says("The job is done.")
}

// A browser opens six connections to a server over HTTP/1.1. Seven tabs of a job need one of them,
// and the tab that has it may be closed at any time.
func sevenTabsOfAJobShareAStream(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	ctx, cancel := context.WithTimeout(b.ctx, 3*time.Minute) // a tab without a connection would load without end
	t.Cleanup(cancel)
	b = &browser{ctx}
	jobs.add("seven", 1, 3)
	var tabs []*tab
	for range 7 {
		p := b.open(t, s.url+"/jobs/scan/seven/watch", 1000)
		p.shows(3)
		tabs = append(tabs, p)
	}
	value[string](tabs[6], `fetch("../seven").then(answer => { window.answered = answer.status; }); ""`)
	require.Eventually(t, func() bool { return value[string](tabs[6], `String(window.answered)`) == "200" }, 2*time.Minute, glance)
	for i, last := range []int{5, 7} { // the first has the stream, and then another one
		require.NoError(t, chromedp.Do(tabs[i].ctx, chromedp.Navigate("about:blank")))
		jobs.add("seven", last-1, last)
		for _, p := range tabs[i+1:] {
			p.shows(last)
		}
	}
	jobs.add("seven", 8, 10)
	for _, p := range tabs[2:] {
		p.shows(10)
		p.says("The job is done.")
	}
}

// The tab that has the stream is frozen, and another one takes over. Afterwards the first one follows
// it, and receives the events so far once more.
func aFrozenTabOfAJobShowsEachEventOnce(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	jobs.add("frozen", 1, 3)
	first := b.open(t, s.url+"/jobs/scan/frozen/watch", 1000)
	first.shows(3)
	second := b.open(t, s.url+"/jobs/scan/frozen/watch", 1000)
	second.shows(3)
	jobs.event("frozen", "stage", "token", "data", `{"text":"once"}`)
	output := `document.getElementById("tokens").textContent`
	for _, p := range []*tab{first, second} {
		require.Eventually(t, func() bool { return value[string](p, output) == "once" }, 2*time.Minute, glance)
	}
	first.lifecycle(page.SetWebLifecycleStateStateFrozen)
	jobs.add("frozen", 4, 6)
	second.shows(6)
	first.lifecycle(page.SetWebLifecycleStateStateActive)
	first.shows(6)
	jobs.add("frozen", 7, 10)
	for _, p := range []*tab{first, second} {
		p.shows(10)
		p.says("The job is done.")
		require.Equal(t, "once", value[string](p, output))
	}
}

// The questions of a new tab are lost, so that it takes over without any event. The server sends it
// all of them, and the other tab must neither show them twice nor miss the next ones.
func aTabThatKnowsNothingTakesOver(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	jobs.add("unanswered", 1, 3)
	first := b.open(t, s.url+"/jobs/scan/unanswered/watch", 1000)
	first.shows(3)
	follower := b.open(t, s.url+"/jobs/scan/unanswered/watch", 1000)
	follower.shows(3)
	mute := chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `const post = BroadcastChannel.prototype.postMessage;
BroadcastChannel.prototype.postMessage = function (message) {
  if (message.kind === "lead") window.leads = true;
  if (message.kind !== "ask") post.call(this, message);
};`})
		return err
	})
	mutedTab := b.open(t, s.url+"/jobs/scan/unanswered/watch", 1000, mute)
	mutedTab.shows(3)
	require.True(t, value[bool](mutedTab, "window.leads === true"))
	jobs.add("unanswered", 4, 6)
	for _, p := range []*tab{mutedTab, follower, first} {
		p.shows(6)
	}
	jobs.add("unanswered", 7, 10)
	for _, p := range []*tab{mutedTab, follower, first} {
		p.shows(10)
		p.says("The job is done.")
	}
}

// A load balancer refuses one connection. The job has not ended, and the page goes on.
func watchPageOutlivesARefusal(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	target, err := url.Parse(s.url)
	require.NoError(t, err)
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	var streams atomic.Int64
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") && streams.Add(1) == 2 {
			http.Error(w, "no server", http.StatusBadGateway)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		balancer.CloseClientConnections() // the page has a stream open
		balancer.Close()
	})
	jobs.add("refused", 1, 3)
	p := b.open(t, balancer.URL+"/jobs/scan/refused/watch", 1000)
	p.shows(3)
	balancer.CloseClientConnections()
	require.Eventually(t, func() bool { return streams.Load() >= 2 }, 2*time.Minute, glance, "the page does not connect again")
	jobs.add("refused", 4, 6)
	p.shows(6)
	p.says("Connected. Stage: scan, running.")
}
