package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The page of a job in a browser. Each case has a tab.
func TestThePageOfAJobInABrowser(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	jobs := &jobsOf{t: t, addr: servers.RedisAddr(), client: goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})}
	t.Cleanup(func() { require.NoError(t, jobs.client.Close()) })
	shared := startJobs(t, jobs.addr, "shared")
	for name, test := range map[string]func(t *testing.T, b *browser, jobs *jobsOf, shared *service){
		"a cut connection": pageReconnects, "a gateway that is killed": pageOutlivesItsGateway, "a token that expires": pageExplainsAnExpiredToken,
		"a busy server": pageWaitsForABusyServer, "pages of other origins": foreignPagesReceiveNothing,
		"several jobs": pageNamesSeveralJobs, "numbers that come again": pageTakesNumbersBack,
		"a phone": pageFitsAPhone, "a screen reader": pageSpeaksToAScreenReader,
	} {
		t.Run(name, func(t *testing.T) {
			defaultBut(t, name, "a gateway that is killed", "a busy server", "several jobs", "numbers that come again", "a phone")
			t.Parallel()
			test(t, b, jobs, shared)
		})
	}
}

// jobsOf are the processes and events on one Redis.
type jobsOf struct {
	t      *testing.T
	addr   string
	client *goredis.Client
}

// add publishes the events of a job with the numbers from first to last. The last of ten is the
// end.
func (j *jobsOf) add(job string, first, last int) {
	j.t.Helper()
	for seq := first; seq <= last; seq++ {
		stage := "scan"
		if seq == 10 {
			stage = "done"
		}
		j.event(job, "stage", stage, "seq", seq, "status", "running", "data", fmt.Sprintf(`{"percent":%d}`, 10*seq), "timestamp", time.Now().UTC().Format(time.RFC3339Nano))
	}
}

func (j *jobsOf) event(job string, fields ...any) {
	j.t.Helper()
	stream := fmt.Sprintf("scan:events:%d", event.Shard(job, 8))
	require.NoError(j.t, j.client.XAdd(j.t.Context(), &goredis.XAddArgs{Stream: stream, Values: append([]any{"job_id", job}, fields...)}).Err())
}

const numbers = `[...document.querySelectorAll("#events b")].map(b => b.textContent)`

// shows waits until the page has the event with the number, and checks that it has all before it
// once and in order.
func (p *tab) shows(last int) {
	p.t.Helper()
	var got []string
	require.Eventually(p.t, func() bool {
		got = value[[]string](p, numbers)
		return len(got) > 0 && got[0] == fmt.Sprint(last)
	}, 2*time.Minute, glance, "event %d is not shown", last)
	var want []string
	for seq := last; seq > 0; seq-- {
		want = append(want, fmt.Sprint(seq))
	}
	require.Equal(p.t, want, got)
	require.InDelta(p.t, 10*last, value[float64](p, `document.getElementById("progress").value`), 0)
	require.Equal(p.t, fmt.Sprintf("%d %%", 10*last), value[string](p, `document.getElementById("percent").textContent`))
}

func pageReconnects(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	proxy := redistest.NewProxy(t, strings.TrimPrefix(shared.url, "http://"))
	p := b.open(t, "http://"+proxy.Addr()+"/jobs/scan/cut/watch", 1000)
	p.says("Waiting for the first event")
	jobs.add("cut", 1, 3)
	p.shows(3)
	p.says("Connected. Stage: scan, running.")
	proxy.SetDown(true)
	p.says("Connection lost")
	jobs.add("cut", 4, 6)
	proxy.SetDown(false)
	p.shows(6)
	proxy.Cut()
	jobs.add("cut", 7, 10)
	p.shows(10)
	p.says("The job is done.")
}

func pageOutlivesItsGateway(t *testing.T, b *browser, jobs *jobsOf, _ *service) {
	s := startJobs(t, jobs.addr, "killed")
	p := b.open(t, s.url+"/jobs/scan/killed/watch", 1000)
	jobs.add("killed", 1, 3)
	p.shows(3)
	s.kill()
	p.says("Connection lost")
	jobs.add("killed", 4, 6)
	s.start()
	p.shows(6)
	p.says("Connected.")
	jobs.add("killed", 7, 10)
	p.shows(10)
	p.says("The job is done.")
}

func pageExplainsAnExpiredToken(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	jobs.add("expired", 1, 2)
	token := func(job, life string) string {
		out, code := shared.command("", "jobs", "token", "scan/"+job, "--for", life)
		require.Zero(t, code, out)
		return "?token=" + strings.TrimSpace(out)
	}
	url := shared.url + "/jobs/scan/expired/watch"
	// It is valid for 31 s, with the leeway.
	p := b.open(t, url+token("expired", "1s"), 1000)
	p.shows(2)
	p.says("This link has expired. Open the job again where you found the link.")
	require.True(t, value[bool](p, `document.getElementById("again").hidden`), "no button that can't help")
	p.shows(2)
	p = b.open(t, url+token("another", "10m"), 1000)
	p.says("This link does not open this job.")
}

func pageWaitsForABusyServer(t *testing.T, b *browser, jobs *jobsOf, _ *service) {
	s := startJobs(t, jobs.addr, "busy", "MILLRACE__PLUGINS__WEB__MAX_STREAMS=1")
	ctx, release := context.WithCancel(t.Context())
	defer release()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/jobs/scan/other/events", nil)
	require.NoError(t, err)
	only, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = only.Body.Close() }()
	jobs.add("busy", 1, 5)
	p := b.open(t, s.url+"/jobs/scan/busy/watch", 1000)
	p.says("The server is busy (full). This page tries again by itself.")
	release()
	p.shows(5)
	p.says("Connected.")
}

// foreign is a page that tries to receive the events and the state of a job.
const foreign = `<!doctype html><title>foreign</title><iframe src="%[1]s/watch"></iframe><script>
const results = {}, url = %[1]q;
let received = 0;
const stream = new EventSource(url + "/events");
stream.onmessage = () => received++;
for (const name of ["event", "state", "busy", "closed", "gap"]) stream.addEventListener(name, () => received++);
stream.onopen = () => results.stream = "open";
stream.onerror = () => { if (stream.readyState === EventSource.CLOSED && !results.stream) results.stream = "closed"; };
async function ask(name, address, options) {
  try { results[name] = (await (await fetch(address, options)).text()); } catch { results[name] = "refused"; }
}
ask("state", url);
ask("header", url, {headers: {Authorization: "Bearer x"}});
ask("events", url + "/events?last_event_id=1", {headers: {Accept: "text/event-stream"}});
ask("opaque", url, {mode: "no-cors"});
</script>`

func foreignPagesReceiveNothing(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	jobs.add("secret", 1, 10)
	target := "" // of the page that is loaded next
	page := func() string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, foreign, target) // the browser reads it
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	attacker, friend := page(), page()
	withOrigin := startJobs(t, jobs.addr, "origins", "MILLRACE__PLUGINS__WEB__ALLOWED_ORIGINS="+friend)
	visit := func(s *service, from string) (received int, results map[string]string) {
		target = s.url + "/jobs/scan/secret"
		p := b.open(t, from, 1000)
		p.blocked = "frame-ancestors 'none'"
		require.Eventually(t, func() bool {
			results = value[map[string]string](p, "results")
			return len(results) == 5
		}, 2*time.Minute, glance, "the page has not tried everything: %v", results)
		return value[int](p, "received"), results
	}
	nothing := map[string]string{"stream": "closed", "state": "refused", "header": "refused", "events": "refused", "opaque": "refused"}
	for _, s := range []*service{shared, withOrigin} {
		for _, site := range []string{attacker, strings.Replace(attacker, "127.0.0.1", "localhost", 1)} {
			received, results := visit(s, site)
			require.Zero(t, received)
			require.Equal(t, nothing, results, "%s of %s", s.url, site)
		}
	}
	// The page can receive: an allowed one does.
	received, results := visit(withOrigin, friend)
	require.Positive(t, received)
	require.Equal(t, "open", results["stream"])
	require.Contains(t, results["state"], `"job_id":"secret"`)
}

func pageNamesSeveralJobs(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	jobs.add("first", 1, 3)
	jobs.add("second", 10, 10)
	p := b.open(t, shared.url+"/jobs/scan/first/watch?job=scan/second", 1000)
	texts := `[...document.querySelectorAll("#events span")].map(e => e.textContent).sort()`
	require.Eventually(t, func() bool { return slices.Contains(value[[]string](p, texts), "scan/second: done, running") }, 2*time.Minute, glance)
	require.Contains(t, value[[]string](p, texts), "scan/first: scan, running")
	require.Equal(t, "With: scan/second", value[string](p, `document.getElementById("others").innerText`))
	require.False(t, value[bool](p, `document.getElementById("bar").checkVisibility()`), "one progress of several jobs")
}

func pageFitsAPhone(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	long := strings.Repeat("x", 120)
	p := b.open(t, shared.url+"/jobs/scan/"+long+"/watch", 360)
	jobs.event(long, "stage", long, "seq", 1, "status", long, "data", `{"percent":33.3,"file":"`+strings.Repeat("y", 500)+`"}`, "timestamp", "2026-11-23T12:00:00Z")
	require.Eventually(t, func() bool { // a transient event is seen by those that are connected
		jobs.event(long, "stage", "token", "data", `{"text":"`+strings.Repeat("z", 500)+`"}`)
		return value[bool](p, `document.getElementById("tokens").textContent !== ""`)
	}, 2*time.Minute, glance)
	jobs.event(long, "stage", "error", "seq", 2)
	p.says("The job has failed.")
	require.Equal(t, 360, value[int](p, "innerWidth"))
	require.LessOrEqual(t, value[int](p, "document.scrollingElement.scrollWidth"), 360, "the page scrolls sideways")
	require.GreaterOrEqual(t, value[float64](p, `(b => { b.hidden = false; const h = b.getBoundingClientRect().height; b.hidden = true; return h })(document.getElementById("again"))`), 44.0)
}

func pageSpeaksToAScreenReader(t *testing.T, b *browser, jobs *jobsOf, shared *service) {
	p := b.open(t, shared.url+"/jobs/scan/heard/watch", 1000)
	// hears checks the tree, and returns the id of the status. A replaced element is not read out.
	hears := func(status, percent string, events int) accessibility.NodeID {
		tree := p.tree()
		var live accessibility.NodeID
		items := 0
		for _, e := range tree {
			switch {
			case e.role == "status" && e.live == "polite":
				live = e.id
			case e.role == "listitem":
				items++
			}
		}
		require.NotEmpty(t, live)
		require.Equal(t, events, items)
		for _, want := range []element{
			{role: "heading", name: "Job heard scan"}, {role: "StaticText", name: status},
			{role: "progressbar", name: "Progress", value: percent}, {role: "list", name: "Events, newest first"},
		} {
			require.True(t, slices.ContainsFunc(tree, func(e element) bool {
				return e.role == want.role && e.name == want.name && e.value == want.value
			}), "%+v is not in %+v", want, tree)
		}
		return live
	}
	jobs.add("heard", 1, 3)
	p.shows(3)
	first := hears("Connected. Stage: scan, running.", "30", 3)
	jobs.add("heard", 4, 10)
	p.says("The job is done.")
	p.shows(10)
	require.Equal(t, first, hears("The job is done.", "100", 10))
	require.Empty(t, value[[]string](p, `[...document.querySelectorAll("button, a, input")].filter(e => !e.textContent.trim()).map(e => e.outerHTML)`), "each control has a name")
	require.Equal(t, "en", value[string](p, "document.documentElement.lang"))
}
