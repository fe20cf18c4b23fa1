package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

// Each user may do what the settings say, and no more.
func TestRoles(t *testing.T) {
	t.Parallel()
	hash, err := bcrypt.GenerateFromPassword([]byte("open"), bcrypt.MinCost)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "ann:%[1]s\nbob:%[1]s\neve:%[1]s\n", hash), 0o600))
	x := newTill()
	r := start(t, func(c *console.Config) {
		c.UsersFile, c.Roles = file, map[string]operate.Role{"bob": operate.Operator, "eve": operate.Admin}
	}, x)
	refund := url.Values{"step": {"preview"}, "in.order": {"7"}}
	for _, c := range []struct {
		name           string
		refund, opened int
	}{{"ann", 403, 403}, {"bob", 200, 403}, {"eve", 200, 200}} {
		who := signed(c.name)
		for path, want := range map[string]int{"till/refund": c.refund, "till/open": c.opened} {
			answer, _ := r.do(http.MethodGet, "/actions/"+path, "", who)
			require.Equal(t, want, answer.StatusCode, c.name)
			answer, text := r.post("/actions/"+path, refund, who)
			if want == 403 {
				require.Equal(t, 403, answer.StatusCode, c.name)
				require.Contains(t, text, "Not allowed: "+strings.ReplaceAll(path, "/", " ")+" needs the role ")
			}
			answer, _ = r.post("/actions/"+path, url.Values{"step": {"do"}, "in.order": {"7"}}, who)
			require.Equal(t, want == 403, answer.StatusCode == http.StatusForbidden, c.name)
			status, said := r.send(path, `{"input":{"order":"7"},"dry_run":true}`, who)
			require.Equal(t, want == 403, status == 403, said)
			if want == 403 {
				require.Contains(t, said["error"], "and "+c.name+" has the role ")
			}
		}
	}
	status, _ := r.send("till/open", `{}`, signed("bob"))
	require.Equal(t, 403, status)
	require.Zero(t, x.opened)
	require.Empty(t, x.done())

	_, list := r.do(http.MethodGet, "/actions", "", signed("ann"))
	require.Contains(t, list, "You are ann, with the role viewer.")
	require.Contains(t, list, `till refund <span class="note">(not allowed: needs the role operator)</span>`)
	require.Contains(t, list, `till open <span class="note">(not allowed: needs the role admin)</span>`)
	_, order := r.do(http.MethodGet, "/orders", "", signed("ann"))
	require.Contains(t, order, "(not allowed: needs the role operator)")
	_, api := r.do(http.MethodGet, "/api/v1/actions", "", signed("ann"))
	require.NotContains(t, api, `"allowed": true`)

	confirm, _ := r.previewed("/actions/till/refund", refund, signed("bob"))
	confirm.Set("why", "broken")
	confirm.Set("confirm", "till refund")
	answer, _ := r.post("/actions/till/refund", confirm, signed("eve"))
	require.Equal(t, http.StatusConflict, answer.StatusCode, "the form is for bob")
	answer, _ = r.post("/actions/till/refund", confirm, signed("bob"))
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	_, outcome := r.do(http.MethodGet, answer.Header.Get("Location"), "", signed("ann"))
	require.Contains(t, outcome, "bob (console, operator)")
	status, _ = r.send("till/refund", `{"input":{"order":"8"},"why":"broken"}`, signed("bob"))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, []string{"bob (console, operator)", "bob (API, operator)"}, []string{x.done()[0].use.Who, x.done()[1].use.Who})

	// Who may not use an action may not stop it either.
	status, began := r.send("till/refund", `{"input":{"order":"8"},"why":"broken","use":"of-bob"}`, signed("bob"))
	require.Equal(t, http.StatusOK, status, began)
	for _, path := range []string{"/actions", "/api/v1/actions"} {
		answer, text := r.post(path+"/uses/of-bob/stop", url.Values{"x": {"y"}}, signed("ann"))
		require.Equal(t, http.StatusForbidden, answer.StatusCode, path)
		require.Contains(t, text, "ann has the role viewer")
	}
}

// A console that only reads has no address that acts.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, func(c *console.Config) { c.ReadOnly = true }, x)
	require.NotContains(t, r.get("/"), "/actions")
	order := r.get("/orders?order=7")
	require.Contains(t, order, "one order")
	require.NotContains(t, order, "till refund")
	for _, path := range []string{"/actions", "/actions/till/open", "/actions/uses/x", "/api/v1/actions", "/api/v1/actions/uses/x"} {
		answer, _ := r.do(http.MethodGet, path, "")
		require.Equal(t, http.StatusNotFound, answer.StatusCode, path)
	}
	for _, path := range []string{"/actions/till/open", "/api/v1/actions/till/open", "/actions/uses/x/stop", "/api/v1/actions/uses/x/stop"} {
		answer, _ := r.do(http.MethodPost, path, `{}`, "Content-Type: application/json")
		require.Equal(t, http.StatusNotFound, answer.StatusCode, path)
	}
	require.Zero(t, x.opened)
}

// Foreign text is text in forms, previews and outcomes, too, and arrives unchanged.
func TestHostileFieldsAreText(t *testing.T) {
	t.Parallel()
	const hostile = `"><img src=x onerror=alert(1)>'&{{.}}`
	x := newTill()
	r := start(t, nil, x)
	clean := func(text string) {
		t.Helper()
		require.NotContains(t, text, "<img")
		require.NotContains(t, text, "\x1b")
		require.Contains(t, text, "&lt;img src=x onerror=alert(1)&gt;")
	}
	clean(r.get("/actions/till/refund?order=" + url.QueryEscape(hostile+"\x1b[31m") + "&item=" + url.QueryEscape(hostile)))
	confirm, text := r.previewed("/actions/till/refund", url.Values{"in.order": {hostile}, "in.item": {hostile}})
	clean(text)
	confirm.Set("why", hostile)
	confirm.Set("confirm", hostile)
	_, text = r.post("/actions/till/refund", confirm)
	clean(text)
	confirm.Set("confirm", "till refund")
	answer, _ := r.post("/actions/till/refund", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	clean(r.get(answer.Header.Get("Location")))
	require.Equal(t, []string{hostile, hostile, hostile}, []string{x.done()[0].in.Text("order"), x.done()[0].in.Text("item"), x.done()[0].use.Why})
}

// An action goes on without its request, shows how far it is, and can be stopped.
func TestAnActionThatTakesLong(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	r.plugin.Impatient()
	confirm, _ := r.previewed("/actions/till/count", url.Values{})
	answer, _ := r.post("/actions/till/count", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	place := answer.Header.Get("Location")
	<-x.began
	text := r.get(place)
	require.Contains(t, text, "<b>It still runs.</b> 3 of 10. The coins come &lt;last&gt;.")
	require.Contains(t, text, `<meta http-equiv="refresh" content="2">`)
	require.NotContains(t, text, "counted")

	status, running := r.send("till/count", `{"use":"count-1"}`)
	require.Equal(t, http.StatusAccepted, status)
	<-x.began
	require.Equal(t, []any{"running", "count-1", nil}, []any{running["state"], running["use"], running["outcome"]})
	for i := range 6 {
		status, _ = r.send("till/count", fmt.Sprintf(`{"use":"more-%d"}`, i))
		require.Equal(t, http.StatusAccepted, status)
		<-x.began
	}
	status, refused := r.send("till/count", `{"use":"ninth"}`)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Contains(t, refused["error"], "8 actions run already")

	// One is stopped by a person, and says what it had done.
	answer, _ = r.post(place+"/stop", url.Values{"x": {"y"}})
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	require.Eventually(t, func() bool { text = r.get(place); return !strings.Contains(text, "http-equiv") }, time.Minute, time.Millisecond)
	require.Contains(t, text, "stopped by anonymous (console): context canceled")
	require.Contains(t, text, "counted 3")

	// The others end by themselves.
	close(x.counting)
	var ended map[string]any
	require.Eventually(t, func() bool {
		ended = nil
		require.NoError(t, json.Unmarshal([]byte(r.get("/api/v1/actions/uses/count-1")), &ended))
		return ended["state"] != "running"
	}, time.Minute, time.Millisecond)
	require.Equal(t, []any{"done", map[string]any{"counted": 10.0}}, []any{ended["state"], ended["outcome"]})
}

// The stop of the process ends an action, and the log says that it was not finished.
func TestTheStopEndsActions(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	r.plugin.Impatient()
	status, _ := r.send("till/count", `{"use":"last"}`)
	require.Equal(t, http.StatusAccepted, status)
	<-x.began
	require.NoError(t, r.stop())
	require.Regexp(t, `level=WARN msg="action failed" plugin=console action="till count" use=last who="anonymous \(API\)" .*the process was stopped before the action had ended`, r.log.String())
}

// twice is a plugin whose action has the name of another one.
type twice struct{ first *till }

func (twice) Name() string                          { return "twice" }
func (t twice) Register(r *pipeline.Registry) error { r.Offer(t); return nil }
func (t twice) Operations() operate.Operations      { return t.first.Operations() }

func TestActionsWithMistakesEndTheStart(t *testing.T) {
	t.Parallel()
	registry, err := pipeline.NewRegistry(pipeline.Env{}, newTill(), twice{newTill()}, console.New())
	require.NoError(t, err)
	require.ErrorContains(t, pipeline.NewRuntime(registry, pipeline.RuntimeOptions{}).StartServices(t.Context()), `action "till refund" of plugin twice: another one has this name`)
}
