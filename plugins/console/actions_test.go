package console_test

import (
	"encoding/json"
	"html"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// The form, the preview, the confirmation and the outcome, as a browser without scripts goes through them.
func TestAnActionOnPages(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	require.Contains(t, r.get("/"), `<a href="/actions">Actions</a>`)
	list := r.get("/actions")
	require.Contains(t, list, `<h2 id="till-actions">till</h2>`)
	require.Contains(t, list, `<a href="/actions/till/refund">till refund</a>`)
	require.Contains(t, list, "Nobody signs in at this console, so whoever reaches its address may use every action")
	order := r.get("/orders?order=7&other=x")
	require.Contains(t, order, `<a href="/actions/till/refund?order=7">till refund</a>`)
	require.NotContains(t, order, "till absent")

	form := r.get("/actions/till/refund?order=7")
	require.Contains(t, form, `name="in.order" type="text" value="7" autocomplete="off" required>`)
	require.Contains(t, form, `inputmode="numeric" value="5"`)
	require.Contains(t, form, `<input type="checkbox" name="in.express" value="true">`)
	require.Contains(t, form, "the number of the order")
	require.Contains(t, form, "without amount (millrace till refund --order 7)", "a form has fields, and the command flags")

	require.Contains(t, form, `<pre tabindex="0">till refund --order 7 --dry-run</pre>`, "the form asks for a preview")
	require.NotContains(t, r.get("/actions/till/refund"), "--dry-run", "a command without the order would be none")

	confirm, text := r.previewed("/actions/till/refund", url.Values{"in.order": {"7"}, "in.item": {"a b\r\n\r\n c\r\n"}, "in.express": {"true"}})
	require.Contains(t, html.UnescapeString(text), `<pre tabindex="0">till refund --order 7 --item 'a b' --item c --express --why REASON</pre>`)
	require.Contains(t, text, "would refund the order 7")
	require.Contains(t, text, "item refunds less; --else is no field.")
	require.Empty(t, x.done(), "a preview changes nothing")

	for field, c := range map[string]struct{ why, typed, problem string }{
		"why": {" ", "till refund", "why is required, for the audit"}, "confirm": {"it was broken", "refund", "confirm must be till refund"},
	} {
		confirm.Set("why", c.why)
		confirm.Set("confirm", c.typed)
		answer, text := r.post("/actions/till/refund", confirm)
		require.Equal(t, http.StatusBadRequest, answer.StatusCode, field)
		require.Contains(t, text, c.problem)
		require.Regexp(t, `<input id="`+field+`"[^>]* aria-invalid="true">`, text)
	}
	require.Empty(t, x.done())
	confirm.Set("why", "it's broken")
	confirm.Set("confirm", "refund")
	_, text = r.post("/actions/till/refund", confirm)
	require.Contains(t, html.UnescapeString(text), `--express --why 'it'\''s broken'</pre>`, "what was written is kept")

	confirm.Set("why", "it was broken")
	confirm.Set("confirm", "till refund")
	answer, text := r.post("/actions/till/refund", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	for range 2 { // a reload does nothing
		outcome := r.get(answer.Header.Get("Location"))
		require.Contains(t, outcome, "refunded 7")
		require.Contains(t, outcome, `<span class="level ok">done</span>`)
		require.NotContains(t, outcome, "http-equiv")
	}
	require.Len(t, x.done(), 1)
	did := x.done()[0]
	require.Equal(t, operate.Input{"order": {"7"}, "amount": {"5"}, "item": {"a b", "c"}, "express": {"true"}}, did.in)
	require.Equal(t, []string{"anonymous (console)", "it was broken", confirm.Get("use")}, []string{did.use.Who, did.use.Why, did.use.ID})
	require.Contains(t, r.log.String(), "action done")

	// An action without fields and without an audit, whose check has failed.
	confirm, _ = r.previewed("/actions/till/open", url.Values{})
	answer, _ = r.post("/actions/till/open", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	outcome := r.get(answer.Header.Get("Location"))
	require.Contains(t, outcome, "not all was done")
	require.Contains(t, outcome, "is jammed")
	answer, _ = r.do(http.MethodGet, "/actions/till/absent", "")
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
	answer, _ = r.do(http.MethodGet, "/actions/uses/absent", "")
	require.Equal(t, http.StatusNotFound, answer.StatusCode)
}

// A program gets the fields that the command writes with --json, and errors that name the field.
func TestAnActionInTheAPI(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	var list struct{ Actions []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(r.get("/api/v1/actions")), &list))
	require.Len(t, list.Actions, 3)
	require.Equal(t, []any{"till refund", "till/refund", "till", "irreversible", "operator", true, true},
		[]any{list.Actions[0]["action"], list.Actions[0]["path"], list.Actions[0]["plugin"], list.Actions[0]["danger"], list.Actions[0]["role"], list.Actions[0]["allowed"], list.Actions[0]["audited"]})
	require.Equal(t, map[string]any{"name": "order", "type": "text", "required": true, "help": "the `number` of the order"}, list.Actions[0]["fields"].([]any)[0])

	status, answer := r.send("till/refund", `{"input":{"order":"7"},"dry_run":true}`)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, map[string]any{"would": "would refund the order 7"}, answer["outcome"])
	require.Equal(t, []any{true, "done"}, []any{answer["dry_run"], answer["state"]})
	require.Empty(t, x.done())

	status, answer = r.send("till/refund", `{"input":{"order":"7","amount":3,"item":["a,b"],"express":true},"why":"broken"}`)
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, map[string]any{"refunded": "7"}, answer["outcome"])
	require.Equal(t, operate.Input{"order": {"7"}, "amount": {"3"}, "item": {"a,b"}, "express": {"true"}}, x.done()[0].in)
	require.Equal(t, "anonymous (API)", x.done()[0].use.Who)

	status, answer = r.send("till/open", `{}`)
	require.Equal(t, http.StatusConflict, status, "a check has failed: the exit code of the command would be 1")
	require.Equal(t, map[string]any{"opened": 1.0}, answer["outcome"])
	require.Contains(t, answer["error"], "is jammed")
	status, _ = r.send("till/absent", `{}`)
	require.Equal(t, http.StatusNotFound, status)
	require.Len(t, x.done(), 1)
}

// What is wrong is named, on the page and in the API, and nothing is done.
func TestWrongFieldsAreNamed(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	for body, c := range map[string]struct {
		field, problem string
		status         int
	}{
		`{"why":"x"}`:                                                         {"order", "order is required", 400},
		`{"input":{"order":"7"}}`:                                             {"why", "why is required", 400},
		`{"input":{"order":7},"why":"x"}`:                                     {"order", "order must be a string, got 7", 400},
		`{"input":{"order":"7","amount":"many"},"why":"x"}`:                   {"amount", "amount must be a whole number", 400},
		`{"input":{"order":"7","amount":1.5},"why":"x"}`:                      {"amount", "amount must be a whole number", 400},
		`{"input":{"order":"7","amount":-1},"why":"x"}`:                       {"amount", "amount must be >= 0", 400},
		`{"input":{"order":"7","item":"a"},"why":"x"}`:                        {"item", "item must be a list of strings", 400},
		`{"input":{"order":"7","express":"yes"},"why":"x"}`:                   {"express", "express must be true or false", 400},
		`{"input":{"order":"7","amuont":1},"why":"x"}`:                        {"amuont", "did you mean amount?", 400},
		`{"input":{"order":"7"},"why":"x","use":"a b"}`:                       {"use", "use must be up to 64 letters", 400},
		`{"input":{"order":"7"},"reason":"x"}`:                                {"", `unknown field "reason"`, 400},
		`{"input":{"order":"7"},"why":"x"} {}`:                                {"", "has something behind it", 400},
		`nothing`:                                                             {"", "the body must be a JSON object", 400},
		`{"input":{"order":"` + strings.Repeat("7", 20<<10) + `"},"why":"x"}`: {"", "too large", 413},
	} {
		status, answer := r.send("till/refund", body)
		require.Equal(t, c.status, status, body)
		require.Contains(t, answer["error"], c.problem)
		require.NotContains(t, answer["error"], "--")
		field, _ := answer["field"].(string)
		require.Equal(t, c.field, field, body)
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"} {
		answer, _ := r.do(http.MethodPost, "/api/v1/actions/till/refund", `{"input":{"order":"7"},"why":"x"}`, "Content-Type: "+kind)
		require.Equal(t, http.StatusUnsupportedMediaType, answer.StatusCode)
	}
	answer, _ := r.do(http.MethodPost, "/actions/till/refund", `{"in.order":"7"}`, "Content-Type: application/json")
	require.Equal(t, http.StatusUnsupportedMediaType, answer.StatusCode)

	for name, c := range map[string]struct {
		values         url.Values
		field, problem string
	}{
		"missing":   {url.Values{"in.amount": {"4"}}, "order", "order is required"},
		"no number": {url.Values{"in.order": {"7"}, "in.amount": {"many"}}, "amount", "amount must be a whole number, got &#34;many&#34;"},
		"refused":   {url.Values{"in.order": {"7"}, "in.amount": {"-1"}}, "amount", "amount must be &gt;= 0"},
		"control":   {url.Values{"in.order": {"7\x1b[31m"}}, "order", "order has a character that can&#39;t be shown"},
		"unknown":   {url.Values{"in.order": {"7"}, "in.x": {"7"}}, "", "till refund has no field &#34;x&#34;; its fields are order, amount, item, express"},
	} {
		c.values.Set("step", "preview")
		answer, text := r.post("/actions/till/refund", c.values)
		require.Equal(t, http.StatusBadRequest, answer.StatusCode, name)
		require.Contains(t, text, `</span> `+c.problem, name)
		if c.field != "" {
			require.Regexp(t, `<input id="in-`+c.field+`"[^>]* aria-invalid="true">`, text, name)
		}
	}
	_, text := r.post("/actions/till/refund", url.Values{"step": {"preview"}, "in.order": {"unpaid"}, "in.amount": {"4"}})
	require.Contains(t, text, "the order was not paid")
	require.Contains(t, text, ">till refund --order unpaid --amount 4 --dry-run", "the same as a command, which says the same")
	_, text = r.post("/actions/till/refund", url.Values{"step": {"preview"}, "in.amount": {"4"}})
	require.Contains(t, text, `inputmode="numeric" value="4"`, "what was filled in is kept")
	require.Empty(t, x.done())
}

// One use acts once, however often it arrives.
func TestADoubleSubmitActsOnce(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	confirm, _ := r.previewed("/actions/till/refund", url.Values{"in.order": {"7"}})
	confirm.Set("why", "broken")
	confirm.Set("confirm", "till refund")
	places := make([]string, 8)
	var group sync.WaitGroup
	for i := range places {
		group.Go(func() {
			answer, _ := r.post("/actions/till/refund", confirm)
			places[i] = answer.Header.Get("Location")
		})
	}
	group.Wait()
	for _, place := range places {
		require.Equal(t, "/actions/uses/"+confirm.Get("use"), place)
	}
	require.Len(t, x.done(), 1)

	for name, change := range map[string][2]string{"other fields": {"in.order", "8"}, "an id of nobody": {"use", "abc"}, "an id of another process": {"use", "mdx5x0-AAAA-00112233445566778899"}} {
		changed := url.Values{}
		for k, v := range confirm {
			changed[k] = v
		}
		changed.Set(change[0], change[1])
		answer, text := r.post("/actions/till/refund", changed)
		require.Equal(t, http.StatusConflict, answer.StatusCode, name)
		require.Contains(t, text, "look at the preview again")
	}
	require.Len(t, x.done(), 1, "what was not previewed is not done")

	const click = `{"input":{"order":"9"},"why":"broken","use":"click-1"}`
	for range 3 {
		status, answer := r.send("till/refund", click)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, map[string]any{"refunded": "9"}, answer["outcome"])
	}
	status, answer := r.send("till/refund", strings.Replace(click, "9", "10", 1))
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, answer["error"], "this id belongs to another use")
	require.Len(t, x.done(), 2)
}

// A page of another origin acts through nobody's browser.
func TestForeignOriginsChangeNothing(t *testing.T) {
	t.Parallel()
	x := newTill()
	r := start(t, nil, x)
	confirm, _ := r.previewed("/actions/till/open", url.Values{})
	for name, headers := range map[string][]string{
		"another site":        {"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"},
		"an older browser":    {"Origin: https://evil.example"},
		"no origin":           {"Origin: null"},
		"a site of this name": {"Sec-Fetch-Site: same-site"},
		"another scheme":      {"Origin: " + r.base, "Sec-Fetch-Site: cross-site"},
	} {
		answer, _ := r.post("/actions/till/open", confirm, headers...)
		require.Equal(t, http.StatusForbidden, answer.StatusCode, name)
		answer, _ = r.do(http.MethodPost, "/api/v1/actions/till/open", `{}`, append([]string{"Content-Type: application/json"}, headers...)...)
		require.Equal(t, http.StatusForbidden, answer.StatusCode, name)
	}
	require.Zero(t, x.opened)
	for _, path := range []string{"/actions/till/open?step=do&use=x", "/api/v1/actions/till/open"} {
		_, _ = r.do(http.MethodGet, path, "")
	}
	require.Zero(t, x.opened, "only POST acts")
	answer, _ := r.post("/actions/till/open", confirm, "Origin: "+r.base, "Sec-Fetch-Site: same-origin")
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
}
