package console_test

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

// ledgers is a plugin of another module with audits.
type ledgers struct{ logs []operate.AuditLog }

func (ledgers) Name() string                          { return "ledgers" }
func (l ledgers) Register(r *pipeline.Registry) error { r.Offer(l); return nil }
func (l ledgers) AuditLogs() []operate.AuditLog       { return l.logs }

// recorded is a log of changes with the numbers len(whos) … 1, by these persons in turn.
func recorded(name string, n int64, whos ...string) operate.AuditLog {
	return operate.AuditLog{
		Name: name, Title: "Changes of " + name, Note: "Kept for a year.",
		Recent: func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			return operate.FilterAudit(ctx, f, limit, func(_ context.Context, f operate.AuditFilter, most int) (changes []operate.Change, err error) {
				before, err := f.RowBefore()
				for i := min(n, before-1); i > 0 && len(changes) < most; i-- {
					changes = append(changes, operate.Change{
						ID: strconv.FormatInt(i, 10), At: time.Date(2026, 3, 4, 5, 0, int(i%60), 0, time.UTC), Who: whos[i%int64(len(whos))],
						Why: fmt.Sprint("reason ", i), Action: "replay", Subject: fmt.Sprint(name, "-", i), Outcome: "replayed", Detail: "=1+1",
					})
				}
				return changes, err
			})
		},
	}
}

var next = regexp.MustCompile(`<a href="([^"]*)" rel="next">`)

func rowsOf(t *testing.T, value json.RawMessage) (rows []map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(value, &rows), string(value))
	return rows
}

// What operators did is on one page, whichever plugin recorded it, and a log is gone through page by page.
func TestTheAuditHasTheLogsOfAllPlugins(t *testing.T) {
	t.Parallel()
	r := start(t, nil, ledgers{[]operate.AuditLog{
		recorded("orders", 120, "ann (console, operator)", "bob@laptop", "carol (API, admin)"), recorded("refunds", 2, "<b>dave</b>"),
		{Name: "empty", Title: "Empty", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
			return operate.AuditPage{}, nil
		}},
	}}, newTill())
	text := r.get("/audit")
	for _, want := range []string{
		`<h2 id="orders-title">Changes of orders</h2>`, "<td>2026-03-04 05:00:00Z</td><td>replay</td><td>orders-120</td><td>ann</td><td>console</td><td>operator</td><td>reason 120</td><td>replayed</td>",
		"<td>bob@laptop</td><td>command</td><td>–</td>", "<td>carol</td><td>API</td><td>admin</td>", "&lt;b&gt;dave&lt;/b&gt;", "Kept for a year.", "No change is recorded.",
		`<a href="/audit" aria-current="page">Audit</a>`,
	} {
		require.Contains(t, text, want)
	}
	require.Contains(t, text, `<section id="uses" data-live`)
	for address, still := range map[string]string{"/audit?who=ann": "orders", "/audit/log?log=orders&who=ann": "changes"} {
		require.Contains(t, r.get(address), `<section id="`+still+`" aria-labelledby`, "each tab would read thousands of rows every two seconds")
	}
	_, terminal := r.do(http.MethodGet, "/audit", "", "Accept: text/plain; columns=200")
	for _, want := range []string{"Changes of refunds", "orders-120", "carol", "More rows: audit/log?before=101&log=orders"} {
		require.Contains(t, terminal, want)
	}
	newest := rowsOf(t, r.panels("audit")["orders"].Value)[0]
	require.Equal(t, map[string]any{
		"when": "2026-03-04T05:00:00Z", "action": "replay", "subject": "orders-120", "who": "ann", "from": "console", "role": "operator", "why": "reason 120",
		"outcome": "replayed", "detail": "=1+1", "id": "120",
	}, newest)
	require.Nil(t, rowsOf(t, r.panels("audit")["refunds"].Value)[0]["role"], "what was not recorded is null")

	var seen []string
	for address := "/audit/log?log=orders"; address != ""; {
		for _, row := range rowsOf(t, r.panels(strings.TrimPrefix(address, "/"))["changes"].Value) {
			seen = append(seen, fmt.Sprint(row["id"]))
		}
		found := next.FindStringSubmatch(r.get(address))
		if address = ""; found != nil {
			address = strings.ReplaceAll(found[1], "&amp;", "&")
		}
	}
	require.Len(t, seen, 120)
	require.Equal(t, []string{"120", "1"}, []string{seen[0], seen[119]})
	r.requireNotFound("audit/log?log=absent", `No audit has the name "absent". The page Audit has all of them.`)
	require.Contains(t, r.get("/audit/log?log=orders&before=x"), "before must be the id of a change")
}

func TestTheAuditIsFiltered(t *testing.T) {
	t.Parallel()
	r := start(t, nil, ledgers{[]operate.AuditLog{recorded("orders", 200, "ann (console, operator)", "bob@laptop"), recorded("refunds", 3, "bob@laptop")}})
	who := func(panel, query string) (rows []map[string]any) {
		return rowsOf(t, r.panels("audit?" + query)[panel].Value)
	}
	for _, row := range who("orders", "who=ANN") {
		require.Equal(t, "ann", row["who"])
	}
	require.Len(t, who("orders", "who=ANN"), 20)
	require.Empty(t, who("refunds", "who=ann"))
	require.Len(t, who("orders", "subject=orders-17"), 11, "17 and 170 … 179")
	require.Empty(t, who("orders", "action=discard"))
	text := r.get("/audit?who=ann&action=replay")
	require.Contains(t, text, `<input name="who" value="ann"></label>`, "the form has what was asked for, and needs no field")
	require.Contains(t, text, `href="/audit/log?action=replay&amp;before=161&amp;log=orders&amp;who=ann" rel="next"`)
	require.Contains(t, text, `href="/audit.csv?action=replay&amp;who=ann"`)
	require.Contains(t, text, "No change matches.")
	require.Contains(t, r.get("/audit/log?log=orders&who=ann"), `<input name="log" value="orders">`)
}

// A log that fails or hangs takes away its own panel.
func TestALogThatFailsLeavesTheOthers(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	stuck := operate.AuditLog{Name: "stuck", Title: "Stuck", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		<-end // it does not look at its context, like a client of a frozen server
		return operate.AuditPage{}, nil
	}}
	broken := operate.AuditLog{Name: "broken", Title: "Broken", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		return operate.AuditPage{}, errors.New(`connection refused: {"password": "hunter2"}`)
	}}
	r := startHasty(t, nil, ledgers{[]operate.AuditLog{stuck, broken, recorded("orders", 3, "ann")}})
	t.Cleanup(func() { close(end) }) // before the stop of the rig
	text := r.unhurried("/audit")
	for _, want := range []string{"No answer within 500ms.", "connection refused", "<td>orders-3</td>"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "hunter2")
	var found map[string]panel
	require.Eventually(t, func() bool {
		found = r.panels("audit")
		return found["orders"].State == "ok" && found["broken"].State == "failed"
	}, time.Minute, time.Millisecond)
	require.Equal(t, []string{"late", "failed", "ok"}, []string{found["stuck"].State, found["broken"].State, found["orders"].State})
	require.Equal(t, "null", string(found["broken"].Value))

	r.plugin.Hurried()
	for _, log := range []string{"stuck", "broken"} {
		answer, text := r.do(http.MethodGet, "/audit.csv?log="+log, "")
		require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode, text)
		require.Contains(t, text, "The audit "+log+" can't be read: ")
		require.NotContains(t, text, "hunter2")
	}
	answer, _ := r.do(http.MethodGet, "/audit.csv", "")
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode, "a file without some changes would look complete")
	answer, _ = r.do(http.MethodGet, "/audit.csv?log=orders", "")
	require.Equal(t, http.StatusOK, answer.StatusCode)
}

// A download may take minutes, and runs alone.
func TestOneDownloadOfTheAuditRunsAtOnce(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	first, free := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(end) })
	slow := operate.AuditLog{Name: "slow", Title: "Slow", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		first()
		<-end
		return operate.AuditPage{}, nil
	}}
	r := start(t, nil, ledgers{[]operate.AuditLog{slow}})
	t.Cleanup(free) // before the stop of the rig
	ended := make(chan int, 1)
	go func() {
		status := 0
		if answer, err := r.client.Get(r.base + "/audit.csv"); err == nil {
			_ = answer.Body.Close()
			status = answer.StatusCode
		}
		ended <- status
	}()
	<-begun
	answer, text := r.do(http.MethodGet, "/audit.csv", "")
	require.Equal(t, http.StatusTooManyRequests, answer.StatusCode, text)
	free()
	require.Equal(t, http.StatusOK, <-ended)
	answer, _ = r.do(http.MethodGet, "/audit.csv", "")
	require.Equal(t, http.StatusOK, answer.StatusCode, "the place is free again")
}

// A person has one download, and one that is not read keeps its place only for a while.
func TestADownloadThatNobodyReadsEnds(t *testing.T) {
	t.Parallel()
	endless := operate.AuditLog{Name: "endless", Title: "Endless", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		return operate.AuditPage{Changes: slices.Repeat([]operate.Change{{ID: "1", Detail: strings.Repeat("x", 1000)}}, 1000), Next: "more"}, nil
	}}
	c := console.New()
	c.Patient()
	c.Stalls(time.Second)
	r := startOf(t, c, func(c *console.Config) { c.UsersFile = usersFile(t, "bob", "eve") }, ledgers{[]operate.AuditLog{endless, recorded("orders", 1, "ann")}})
	download := func(name string) int {
		answer, _ := r.do(http.MethodGet, "/audit.csv?log=orders", "", signed(name))
		return answer.StatusCode
	}
	for _, name := range []string{"ann", "bob"} {
		require.Equal(t, http.StatusOK, download(name))
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "GET /audit.csv?log=endless HTTP/1.1\r\nHost: console\r\n%s\r\n\r\n", signed(name))
		require.NoError(t, err)
		_, err = io.ReadFull(conn, make([]byte, 1)) // it runs, and is not read any more
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		return download("ann") == http.StatusOK && download("bob") == http.StatusOK && download("eve") == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
	require.Contains(t, r.log.String(), "a download of the audit was cut off")
}

func TestACellIsNoFormula(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"'=1", "'+1", "'-1", "'@1", "1", ""}, console.Cells("=1", "+1", "-1", "@1", "1", ""))
}

func TestTheAuditIsDownloaded(t *testing.T) {
	t.Parallel()
	logins := operate.AuditLog{Name: "logins", Title: "Logins", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		return operate.AuditPage{Changes: []operate.Change{{ID: "1", Action: "login", Subject: "password=hunter2", Who: "ann", Outcome: "password=hunter2"}}}, nil
	}}
	cut := recorded("cut", 1500, "ann")
	whole := cut.Recent
	cut.Recent = func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
		if f.Before != "" {
			return operate.AuditPage{}, errors.New("connection refused")
		}
		return whole(ctx, f, limit)
	}
	r := start(t, nil, ledgers{[]operate.AuditLog{recorded("orders", 2500, "ann (console, operator)", "bob"), recorded("refunds", 2, "carol"), cut, logins}})
	answer, text := r.do(http.MethodGet, "/audit.csv?log=orders&who=ann", "")
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "text/csv; charset=utf-8; header=present", answer.Header.Get("Content-Type"))
	require.Contains(t, answer.Header.Get("Content-Disposition"), "attachment")
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+1250)
	require.Equal(t, []string{"log", "id", "at", "action", "subject", "who", "from", "role", "why", "outcome", "detail"}, rows[0])
	require.Equal(t, []string{"orders", "2500", "2026-03-04T05:00:40Z", "replay", "orders-2500", "ann", "console", "operator", "reason 2500", "replayed", "'=1+1"}, rows[1],
		"a spreadsheet must not take a text for a formula")
	answer, _ = r.do(http.MethodGet, "/audit.csv?log=absent", "")
	require.Equal(t, http.StatusNotFound, answer.StatusCode)

	_, text = r.do(http.MethodGet, "/audit.csv?log=logins", "")
	require.Contains(t, text, "password=[masked]", "what the page hides")
	require.NotContains(t, text, "hunter2")

	request, err := http.NewRequest(http.MethodGet, r.base+"/audit.csv?log=cut", http.NoBody)
	require.NoError(t, err)
	if broken, err := r.client.Do(request); err == nil {
		_, err = io.ReadAll(broken.Body)
		_ = broken.Body.Close()
		require.Error(t, err, "a file that is not complete must not look like one that is")
	}
	require.Contains(t, r.log.String(), "a download of the audit was cut off")
}

// The page has the uses of this instance with the role of the person, and says which actions no log records.
func TestUsesAreInTheAudit(t *testing.T) {
	t.Parallel()
	x := newTill()
	close(x.counting)
	r := start(t, func(c *console.Config) {
		c.UsersFile = usersFile(t)
		c.Roles = map[string]operate.Role{"ann": operate.Operator}
	}, x)
	status, _ := r.send("till/refund", `{"input":{"order":"7","express":true},"why":"it broke"}`, signed("ann"))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "ann (API, operator)", x.done()[0].use.Who)
	get := func(path string, headers ...string) string {
		answer, text := r.do(http.MethodGet, path, "", append(headers, signed("ann"))...)
		require.Equal(t, http.StatusOK, answer.StatusCode, text)
		return text
	}
	confirm, _ := r.previewed("/actions/till/count", url.Values{}, signed("ann"))
	answer, text := r.post("/actions/till/count", confirm, signed("ann"))
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	require.Contains(t, get(answer.Header.Get("Location")), "counted 10")
	page := get("/audit")
	require.Regexp(t, `<a href="/actions/uses/[^"]+">till refund</a></td><td>order=7 express=true</td><td>ann</td><td>API</td><td>operator</td><td>it broke</td><td>done</td>`, page)
	require.Regexp(t, `>till count</a></td><td>–</td><td>ann</td><td>console</td><td>operator</td>`, page)
	require.Less(t, strings.Index(page, ">till count</a></td><td>–"), strings.Index(page, ">till refund</a></td><td>order=7"), "the newest is first")
	require.Contains(t, page, `till refund</a></td><td>till</td><td>by its plugin, which offers no audit to the console`)
	require.Contains(t, page, `till count</a></td><td>till</td><td>in the log of the instance that does it`)
	filtered := get("/audit?subject=order%3D7")
	require.Contains(t, filtered, ">it broke<")
	require.NotContains(t, filtered, ">till count</a></td><td>–")

	reader := start(t, func(c *console.Config) { c.ReadOnly = true }, newTill())
	text = reader.get("/audit")
	require.NotContains(t, text, "Actions at this instance")
	require.NotContains(t, text, "/actions")
}
