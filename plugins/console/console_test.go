package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
)

// A loader that never returns takes away its own panel, and is started once however many people look.
func TestPanelsFailAlone(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	started := make(chan struct{}, 10)
	stuck := pages.Panel{Name: "stuck", Title: "Stuck", Load: func(context.Context, pages.Query) (pages.Block, error) {
		started <- struct{}{}
		<-end // it does not look at its context, like a client of a frozen server
		return pages.Text("late"), nil
	}}
	r := startHasty(t, nil, page(
		loading("well", pages.Stats{{Name: "Orders", Cell: pages.Count(12)}}, nil), stuck,
		loading("broken", nil, errors.New("connection refused")),
		loading("absent", nil, pages.ErrNothing),
		pages.Panel{Name: "panics", Title: "Panics", Load: func(context.Context, pages.Query) (pages.Block, error) { panic("nil client") }},
	))
	t.Cleanup(func() { close(end) }) // before the stop of the rig
	for range 2 {
		text := r.unhurried("/tried")
		require.Contains(t, text, "<dd>12</dd>")
		require.Contains(t, text, "No answer within 500ms. The read goes on for up to 5s")
		require.Contains(t, text, "connection refused")
		require.Contains(t, text, "panic: nil client")
		require.NotContains(t, text, "Panel absent")
	}
	require.Len(t, started, 1, "the loader that hangs was started again")
	found := r.panels("tried")
	for end := time.Now().Add(time.Minute); found["well"].State == "late" && time.Now().Before(end); {
		found = r.panels("tried")
	}
	require.Equal(t, "ok", found["well"].State)
	require.JSONEq(t, `{"orders":12}`, string(found["well"].Value))
	for _, name := range []string{"stuck", "broken", "panics"} {
		require.NotEqual(t, "ok", found[name].State)
		require.Equal(t, "null", string(found[name].Value), "what is not known is no 0")
		require.Nil(t, found[name].At)
	}
}

// What is not known stays unknown on the page and null in the JSON.
func TestUnknownIsNotZero(t *testing.T) {
	t.Parallel()
	table := pages.Table{Columns: pages.Columns("Waiting", "Done"), Rows: [][]pages.Cell{{pages.Number(nil), pages.Count(0)}}}
	r := start(t, nil, page(loading("numbers", table, nil)))
	require.Contains(t, r.get("/tried"), `<td class="number">unknown</td><td class="number">0</td>`)
	require.JSONEq(t, `[{"waiting":null,"done":0}]`, string(r.panels("tried")["numbers"].Value))
}

// Foreign text is text, wherever it comes from.
func TestHostileContentIsText(t *testing.T) {
	t.Parallel()
	const hostile = "<img src=x onerror=alert(1)>\"'&\u202e\x00\x1b[31m javascript:alert(1)"
	large := strings.Repeat("<em>", 1<<20/4)
	check := operate.Check{Name: hostile, Level: operate.Fail, Text: hostile, Remedy: hostile, Runbook: hostile}
	cell := pages.Word(hostile)
	r := start(t, nil, contributor{{Path: "tried", Title: hostile, Panels: []pages.Panel{
		{Name: "all", Title: hostile, Values: []string{"id"}, Load: func(_ context.Context, q pages.Query) (pages.Block, error) {
			return pages.Blocks{
				pages.Table{Columns: pages.Columns(hostile), Rows: [][]pages.Cell{{cell}}, Note: hostile}, pages.Table{Empty: hostile},
				pages.Stats{{Name: hostile, Cell: cell}}, pages.Text(hostile), pages.Checks{check},
				pages.Record{Fields: pages.Stats{{Name: hostile, Cell: cell}}, Folds: []pages.Fold{
					{Title: hostile, Text: hostile}, {Title: "Large", Text: large}, {Title: "Number", Text: `{"id":1152921504606846977}`},
				}},
				pages.Answer{Lines: []string{hostile}, Tables: []operate.Table{{Columns: []string{hostile}, Rows: [][]string{{hostile}}}}, Notes: []string{hostile}, Checks: []operate.Check{check}},
				pages.Text("You asked for " + q.Text("id")),
				pages.Stats{
					{Name: "Script", Cell: pages.Word("one").At("javascript:alert(1)")}, {Name: "Elsewhere", Cell: pages.Word("two").At("//evil.example/")},
					{Name: "Absolute", Cell: pages.Word("three").At("https://evil.example/")}, {Name: "Ours", Cell: pages.Word("four").At("tried?id=%3Cb%3E")},
				},
			}, nil
		}},
		loading("broken", nil, errors.New(hostile)),
	}}})
	text := r.get("/tried?id=" + "%3Cscript%3Ealert(2)%3C/script%3E")
	for _, bad := range []string{"<img", "onerror=alert(1)>", "<script>", "<em>", "\u202e", "\x00", "\x1b", `href="javascript`, "evil.example/\"", "#ZgotmplZ"} {
		require.NotContains(t, text, bad)
	}
	require.Equal(t, 1, strings.Count(text, "<script"), "the script of the console and no other")
	require.Contains(t, text, "&lt;img src=x onerror=alert(1)&gt;")
	require.Contains(t, text, "You asked for &lt;script&gt;alert(2)&lt;/script&gt;")
	require.Contains(t, text, "{&#34;id&#34;:1152921504606846977}", "a large number keeps its digits")
	require.Contains(t, text, `<a href="/tried?id=%3Cb%3E">four</a>`)
	require.Less(t, len(text), 600<<10, "a large payload is cut")
	require.Contains(t, text, "more bytes; the JSON of this page has all of them.")
	require.Contains(t, string(r.panels("tried")["all"].Value), strings.Repeat(`\u003cem\u003e`, 1<<20/4), "the JSON has all of it")
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	r := start(t, nil)
	for _, path := range []string{"/", "/api/v1/home", "/absent", "/api/v1/absent"} {
		answer, _ := r.do(http.MethodGet, path, "")
		h := answer.Header
		policy := h.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'")
		require.Contains(t, policy, "frame-ancestors 'none'")
		require.Contains(t, policy, "script-src 'self'; connect-src 'self';", "a script is a file of the console, and reads only from it")
		require.NotContains(t, policy, "unsafe")
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"))
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		require.Equal(t, "no-store", h.Get("Cache-Control"))
		require.Empty(t, h.Get("Access-Control-Allow-Origin"))
	}
	answer, _ := r.do(http.MethodGet, "/absent", "")
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
}

func TestForeignOriginsAreRefused(t *testing.T) {
	t.Parallel()
	ran := make(chan struct{}, 10)
	r := start(t, nil, page(pages.Panel{Name: "asked", Title: "Asked", Asked: true, Load: func(context.Context, pages.Query) (pages.Block, error) {
		ran <- struct{}{}
		return pages.Text("done"), nil
	}}))
	for name, c := range map[string]struct {
		method  string
		headers []string
		want    int
	}{
		"a form of the console":            {"POST", []string{"Origin: " + r.base, "Sec-Fetch-Site: same-origin"}, 200},
		"a form of another site":           {"POST", []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}, 403},
		"a form of an older browser":       {"POST", []string{"Origin: https://evil.example"}, 403},
		"a form of a page without origin":  {"POST", []string{"Origin: null"}, 403},
		"a form with a name of this site":  {"POST", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
		"the script behind a proxy":        {"GET", []string{"Origin: https://console.example", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: script"}, 200},
		"a script that says it navigates":  {"GET", []string{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 403},
		"a link of another site":           {"GET", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, 200},
		"a script of another site":         {"GET", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty"}, 403},
		"a frame of another site":          {"GET", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, 403},
		"a script with an origin":          {"GET", []string{"Origin: https://evil.example"}, 403},
		"a name that leads to loopback":    {"GET", []string{"Host: evil.example"}, 421},
		"the name of this machine's tools": {"GET", []string{"Host: localhost:9465"}, 200},
	} {
		before := len(ran)
		answer, text := r.do(c.method, "/tried", "panel=asked", c.headers...)
		require.Equal(t, c.want, answer.StatusCode, "%s: %s", name, text)
		require.Equal(t, c.method == "POST" && c.want == 200, len(ran) > before, name)
	}
	require.NotContains(t, r.get("/tried"), "done", "it is loaded when somebody asks for it")
	require.Equal(t, "asked", r.panels("tried")["asked"].State)
	_, text := r.do(http.MethodPost, "/api/v1/tried", "panel=asked")
	require.Contains(t, text, `"value": "done"`)
}

// usersFile has the user ann with the password open.
func usersFile(t testing.TB, more ...string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("open"), bcrypt.MinCost)
	require.NoError(t, err)
	text := "# operators\n"
	for _, name := range append([]string{"ann"}, more...) {
		text += name + ":" + string(hash) + "\n"
	}
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestLogin(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *console.Config) { c.UsersFile = usersFile(t) }, page(loading("secret", pages.Text("inside"), nil)))
	try := func(name, password string) (status int, text string) {
		request, err := http.NewRequest(http.MethodGet, r.base+"/tried", http.NoBody)
		require.NoError(t, err)
		request.SetBasicAuth(name, password)
		authorization := request.Header.Get("Authorization")
		answer, text := r.do(http.MethodGet, "/tried", "", "Authorization: "+authorization)
		return answer.StatusCode, text
	}
	for _, bad := range [][2]string{{"ann", "wrong"}, {"ann", ""}, {"bob", "open"}, {"", "open"}, {"ann", strings.Repeat("o", 5000)}} {
		for range 2 {
			status, text := try(bad[0], bad[1])
			require.Equal(t, http.StatusUnauthorized, status, bad)
			require.NotContains(t, text, "inside")
		}
	}
	for range 2 { // compared, and remembered
		status, text := try("ann", "open")
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, text, "inside")
	}
	status, _ := try("ann", "wrong")
	require.Equal(t, http.StatusUnauthorized, status, "what is remembered is one password")
	for _, path := range []string{"/", "/api/v1/tried", "/api/v1/", "/absent"} {
		answer, text := r.do(http.MethodGet, path, "")
		require.Equal(t, http.StatusUnauthorized, answer.StatusCode, path)
		require.Contains(t, answer.Header.Get("WWW-Authenticate"), "Basic")
		require.NotContains(t, text, "inside")
	}
}

// The start is refused where anybody would see the pages, or passwords would cross a network.
func TestRefusedStart(t *testing.T) {
	t.Parallel()
	certificate, _ := pipelinetest.Certificate(t)
	users, plain := usersFile(t), filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("ann:open\n"), 0o600))
	for name, c := range map[string]struct {
		settings []string
		want     string // empty: it is accepted
	}{
		"loopback":                      {[]string{"LISTEN=127.0.0.1:9465"}, ""},
		"localhost":                     {[]string{"LISTEN=localhost:9465"}, ""},
		"all addresses":                 {[]string{"LISTEN=:9465"}, "plugins.console.listen: must be on this machine, such as 127.0.0.1:9465"},
		"another address":               {[]string{"LISTEN=10.0.0.7:9465"}, "set plugins.console.users_file to a file of htpasswd -B"},
		"passwords without TLS":         {[]string{"LISTEN=:9465", "USERS_FILE=" + users}, "plugins.console.tls.cert_file: must be set, because passwords and tokens must not cross a network without TLS"},
		"passwords behind a proxy":      {[]string{"LISTEN=:9465", "USERS_FILE=" + users, "ALLOW_PLAINTEXT_CREDENTIALS=true"}, ""},
		"passwords with TLS":            {[]string{"LISTEN=:9465", "USERS_FILE=" + users, "TLS__CERT_FILE=" + certificate, "TLS__KEY_FILE=" + certificate}, ""},
		"a hash that is not of bcrypt":  {[]string{"USERS_FILE=" + plain}, "line 1: the hash of ann is not of bcrypt: write it with htpasswd -B"},
		"a file that does not exist":    {[]string{"USERS_FILE=/absent"}, "plugins.console.users_file: open /absent"},
		"a role of a user":              {[]string{"USERS_FILE=" + users, "ROLES__ANN=operator"}, ""},
		"a role of nobody":              {[]string{"USERS_FILE=" + users, "ROLES__BOB=operator"}, ""}, // such as one who was removed from the file; the start warns
		"a role that does not exist":    {[]string{"USERS_FILE=" + users, "ROLES__ANN=root"}, `plugins.console.roles.ann: must be viewer, operator or admin, got "root"`},
		"a role without a login":        {[]string{"ROLES__ANN=admin"}, "plugins.console.roles.ann: has no effect without plugins.console.users_file or plugins.console.auth"},
		"an address that can't be read": {[]string{"LISTEN=9465"}, `plugins.console.listen: must be host:port, got "9465"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environ := []string{"MINE__PLUGINS__CONSOLE__ENABLED=true"}
			for _, s := range c.settings {
				environ = append(environ, "MINE__PLUGINS__CONSOLE__"+s)
			}
			command := "validate"
			if c.want != "" {
				command = "run"
			}
			var printed pipelinetest.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "mine", Plugins: []pipeline.Plugin{console.New()}, Args: []string{command}, Environ: environ, Stdout: &printed, Stderr: &printed,
			})
			if c.want == "" {
				require.Equal(t, app.ExitOK, code, printed.String())
				return
			}
			require.Equal(t, app.ExitUsage, code, printed.String())
			require.Contains(t, printed.String(), c.want)
		})
	}
}

// A console that has no address ends no process that handles messages.
func TestAnAddressInUse(t *testing.T) {
	t.Parallel()
	first := start(t, nil)
	second := start(t, func(c *console.Config) { c.Listen = strings.TrimPrefix(first.base, "http://") })
	require.Equal(t, "http://", second.base)
	require.Contains(t, second.log.String(), "no console: its address is in use")
	first.get("/")
}

// A first visit of a page with 200 rows is light, without any compression.
func TestWeight(t *testing.T) {
	t.Parallel()
	table := pages.Table{Columns: pages.Columns("Route", "State", "From", "Waiting", "Oldest", "Dead letters")}
	for i := range 200 {
		table.Rows = append(table.Rows, []pages.Cell{
			pages.Word(fmt.Sprintf("orders.region-%d.accept", i)), pages.Word("behind: the oldest message waits for 12m").In(operate.Warn),
			pages.Word(fmt.Sprintf("kafka orders-region-%d-publish, group orders-region-%d", i, i)), pages.Count(i * 12345), pages.Word("12m3s ago"),
			pages.Count(i).At("dead-letters").In(operate.Warn),
		})
	}
	r := start(t, nil, page(loading("rows", table, nil)))
	text := r.get("/tried")
	transferred := len(text)
	assets := regexp.MustCompile(`(?:<link [^>]*href|<script [^>]*src)="(/[^"]*)"`).FindAllStringSubmatch(text, -1)
	require.Len(t, assets, 2, "the style sheet and the script")
	for _, asset := range assets {
		transferred += len(r.get(asset[1]))
	}
	require.Contains(t, text, "orders.region-199.accept")
	require.Greater(t, transferred, 50<<10, "the rows were counted")
	require.LessOrEqual(t, transferred, 150<<10)
}

func TestPagesWithMistakesEndTheStart(t *testing.T) {
	t.Parallel()
	block := loading("one", pages.Text("x"), nil)
	for name, c := range map[string]struct {
		pages contributor
		want  string
	}{
		"a path with a space":      {contributor{{Path: "my page", Title: "x"}}, "the path must be"},
		"a path of the console":    {contributor{{Path: "api", Title: "x"}}, "the console itself uses this path"},
		"no title":                 {contributor{{Path: "mine"}}, `page "mine" has no title`},
		"two panels with one name": {contributor{{Path: "mine", Title: "x", Panels: []pages.Panel{block}}, {Path: "mine", Panels: []pages.Panel{block}}}, `two panels have the name "one"`},
		"a name of the console":    {contributor{{Path: "mine", Title: "x", Panels: []pages.Panel{loading("read", nil, nil)}}}, `panel "read": the console itself uses this name`},
		"no loader":                {contributor{{Path: "mine", Title: "x", Panels: []pages.Panel{{Name: "one"}}}}, "Load is nil"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry, err := pipeline.NewRegistry(pipeline.Env{}, c.pages, console.New())
			require.NoError(t, err)
			require.ErrorContains(t, pipeline.NewRuntime(registry, pipeline.RuntimeOptions{}).StartServices(t.Context()), c.want)
		})
	}
}

// silent is a source of a server that has never answered.
type silent struct {
	*pipelinetest.Feed
	end chan struct{}
}

// Backlog implements operate.Measured, and does not look at its context.
func (s silent) Backlog(context.Context) (operate.Backlog, error) {
	<-s.end
	return operate.Backlog{}, nil
}

// silentRoute is a plugin that reads it.
type silentRoute struct{ silent }

func (silentRoute) Name() string { return "quiet" }

func (p silentRoute) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "quiet", From: p.silent, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

// A server that has never answered is named beside the routes that read from it, and its numbers are unknown.
func TestAServerThatHasNeverAnswered(t *testing.T) {
	t.Parallel()
	feed := silent{pipelinetest.NewFeed("mails"), make(chan struct{})}
	c := console.New()
	c.PatientButForSources()
	r := startOf(t, c, nil, silentRoute{feed})
	t.Cleanup(func() { close(feed.end) }) // before the stop of the rig
	text := r.get("/")
	kind := feed.Describe().Kind
	require.Contains(t, text, "not known, because "+kind+" does not answer")
	require.Contains(t, text, "no answer within ")
	quiet := rows(t, r.panels("home")["routes"].Value, "route")["quiet"]
	require.Contains(t, quiet, "waiting")
	require.Nil(t, quiet["waiting"], "what is not known is no 0")
}

// A form of a page leads to the address with its values, and what it is filled with stays text.
func TestAFormThatFinds(t *testing.T) {
	t.Parallel()
	find := pages.Find{Page: "tried", Fields: []operate.Field{{Name: "kind", Default: `"><script>alert(1)</script>`}, {Name: "id", Required: true}}}
	r := start(t, nil, page(loading("find", find, nil)))
	text := r.get("/tried")
	require.Contains(t, text, `<form method="get" action="/tried" class="find">`)
	require.Contains(t, text, `<input name="id" value="" required>`)
	require.NotContains(t, text, "<script>")
	require.JSONEq(t, `{"page": "tried", "fields": ["kind", "id"]}`, string(r.panels("tried")["find"].Value))
}

// A name that no panel has is a mistake of the address, and no page without panels.
func TestAnUnknownPanelIsNotFound(t *testing.T) {
	t.Parallel()
	r := start(t, nil, page(loading("one", pages.Text("1"), nil), pages.Panel{Name: "two", Asked: true, Load: func(context.Context, pages.Query) (pages.Block, error) {
		return pages.Text("2"), nil
	}}))
	for _, c := range []struct{ method, path, body string }{
		{http.MethodGet, "/api/v1/tried?panel=three", ""}, {http.MethodPost, "/api/v1/tried?panel=three", ""}, {http.MethodPost, "/api/v1/tried", "panel=three"},
		{http.MethodGet, "/tried?panel=three", ""}, {http.MethodPost, "/tried", "panel=three"},
	} {
		answer, text := r.do(c.method, c.path, c.body)
		require.Equal(t, http.StatusNotFound, answer.StatusCode, c)
		require.Regexp(t, `The page tried has no panel (\\"|&#34;)three(\\"|&#34;); it has one, two\.`, text, c)
	}
	for _, c := range []struct{ method, path, body string }{
		{http.MethodGet, "/api/v1/tried?panel=one", ""}, {http.MethodPost, "/api/v1/tried?panel=two", ""}, {http.MethodGet, "/tried?panel=one", ""}, {http.MethodPost, "/tried", "panel=two"},
	} {
		answer, _ := r.do(c.method, c.path, c.body)
		require.Equal(t, http.StatusOK, answer.StatusCode, c)
	}
	var out pipelinetest.Buffer
	code, log := top(t.Context(), &out, nil, "tried?panel=three", "--json", "--url", r.base)
	require.Equal(t, app.ExitBad, code)
	require.Contains(t, log, "it has one, two.")
}
