package console_test

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

var addresses = regexp.MustCompile(` (?:href|src|action)="([^"]*)"`)

// behind returns the rig as it is reached through a proxy at /ops/millrace, which removes the prefix or not.
// What is not below the prefix is another site.
func (r *rig) behind(t *testing.T, removes bool) *rig {
	t.Helper()
	to, err := url.Parse(r.base)
	require.NoError(t, err)
	forward := http.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	if removes {
		forward = http.StripPrefix("/ops/millrace", forward)
	}
	mux := http.NewServeMux()
	mux.Handle("/ops/millrace/", forward)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	other := *r
	other.base = server.URL
	return &other
}

// A proxy may show the console below a path. All addresses of its pages, forms, redirects and answers are then
// below it, and work, whether the proxy removes the path or not.
func TestBelowAPrefix(t *testing.T) {
	t.Parallel()
	const prefix = "/ops/millrace"
	table := pages.Table{Columns: pages.Columns("Order"), Rows: [][]pages.Cell{{pages.Word("seven").At("orders?order=7")}}}
	find := pages.Find{Page: "orders", Fields: []operate.Field{{Name: "order"}}}
	asked := loading("asked", pages.Text("asked for"), nil)
	asked.Asked = true
	x := newTill()
	direct := start(t, func(c *console.Config) { c.Prefix = prefix }, x, page(loading("links", pages.Blocks{table, find}, nil), asked))
	direct.plugin.Impatient()
	require.True(t, strings.HasSuffix(direct.plugin.Announce()["console"], prefix+"/"), direct.plugin.Announce())
	for name, removes := range map[string]bool{"a proxy that removes it": true, "a proxy that keeps it": false} {
		t.Run(name, func(t *testing.T) {
			r := direct.behind(t, removes)
			seen := map[string]bool{}
			follow := []string{prefix + "/"}
			for len(follow) > 0 {
				address := follow[0]
				follow = follow[1:]
				if seen[address] {
					continue
				}
				seen[address] = true
				text := r.get(address)
				for _, m := range addresses.FindAllStringSubmatch(text, -1) {
					link := html.UnescapeString(m[1])
					if link == "data:," {
						continue
					}
					require.True(t, strings.HasPrefix(link, prefix+"/"), "%s has the address %s", address, link)
					follow = append(follow, link)
				}
			}
			for _, address := range []string{"/", "/tried", "/orders", "/orders?order=7", "/actions", "/actions/till/refund", "/actions/till/refund?order=7"} {
				require.True(t, seen[prefix+address], "no link to %s in %v", address, seen)
			}
			answer, text := r.post(prefix+"/tried", url.Values{"panel": {"asked"}})
			require.Equal(t, http.StatusOK, answer.StatusCode)
			require.Contains(t, text, "asked for")

			confirm, _ := r.previewed(prefix+"/actions/till/refund", url.Values{"in.order": {"7"}})
			confirm.Set("why", "broken")
			confirm.Set("confirm", "till refund")
			answer, text = r.post(prefix+"/actions/till/refund", confirm)
			require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
			require.Eventually(t, func() bool { return strings.Contains(r.get(answer.Header.Get("Location")), "refunded 7") },
				time.Minute, 10*time.Millisecond, "a console that waits for nothing may show that it still runs")

			answer, text = r.do(http.MethodPost, prefix+"/api/v1/actions/till/count", `{"use":"`+strings.ReplaceAll(name, " ", "-")+`"}`, "Content-Type: application/json")
			require.Equal(t, http.StatusAccepted, answer.StatusCode, text)
			<-x.began
			running := answer.Header.Get("Location")
			require.Contains(t, r.get(running), `"running"`)
			page := strings.Replace(running, "/api/v1", "", 1)
			stop := regexp.MustCompile(`action="([^"]*/stop)"`).FindStringSubmatch(r.get(page))
			require.Len(t, stop, 2)
			answer, _ = r.post(stop[1], url.Values{"x": {"y"}})
			require.Equal(t, page, answer.Header.Get("Location"))
			require.Contains(t, r.get(page), "stopped by anonymous (console)")
		})
	}
	answer, _ := direct.do(http.MethodGet, prefix, "")
	require.Equal(t, []any{http.StatusPermanentRedirect, prefix + "/"}, []any{answer.StatusCode, answer.Header.Get("Location")})
	answer, _ = direct.do(http.MethodGet, prefix+"else/", "")
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
	require.Contains(t, direct.get("/tried"), `href="/ops/millrace/tried"`)
}

// A prefix that is no path, or that is an address of the console, ends the start.
func TestRefusedPrefixes(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"millrace", "/", "/millrace/", "//evil.example", "/a b", "/a/../b", "/<b>", "/a?b"} {
		c := console.DefaultConfig()
		c.Prefix = bad
		require.ErrorContains(t, c.Validate(), "prefix: must be a path such as /millrace", bad)
	}
	for _, taken := range []string{"/tried", "/api", "/assets/x", "/actions"} {
		c := console.New()
		c.Settings().(*console.Config).Prefix = taken
		registry, err := pipeline.NewRegistry(pipeline.Env{}, page(loading("one", pages.Text("x"), nil)), c)
		require.NoError(t, err)
		require.ErrorContains(t, pipeline.NewRuntime(registry, pipeline.RuntimeOptions{}).StartServices(t.Context()), "plugins.console.prefix: must begin otherwise than with /")
	}
}
