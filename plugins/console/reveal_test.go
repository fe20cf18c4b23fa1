package console_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

// revealed is a use of the page secretPage.
type revealed struct {
	order string
	use   operate.Use
}

// secretPage has a secret in a payload. record is called when somebody asks to see it.
func secretPage(record func(revealed) error) contributor {
	one := loading("order", pages.Record{
		Fields: pages.Stats{{Name: "Token", Cell: pages.Word("hunter2-field")}, {Name: "Amount", Cell: pages.Count(5)}},
		Folds:  []pages.Fold{{Title: "Payload", Payload: []byte(`{"secret": "hunter2", "name": "ann"}`)}},
	}, nil)
	one.Values = []string{"id"}
	one.Reveal = func(_ context.Context, q pages.Query, use operate.Use) error {
		return record(revealed{q.Text("id"), use})
	}
	other := loading("other", pages.Record{Folds: []pages.Fold{{Title: "Headers", Headers: map[string]string{"Cookie": "hunter2"}}}}, nil)
	return page(one, other)
}

// What is masked is shown to a person with the role alone, after it was recorded, and in this answer alone.
func TestWhoRevealsWhatIsMasked(t *testing.T) {
	t.Parallel()
	var done []revealed
	r := start(t, func(c *console.Config) {
		c.UsersFile = usersFile(t)
		c.Roles = map[string]operate.Role{"ann": operate.Operator}
		c.RevealRole = operate.Operator
	}, secretPage(func(one revealed) error { done = append(done, one); return nil }))
	form := func(panel, why string) url.Values {
		return url.Values{"panel": {panel}, "reveal": {"yes"}, "why": {why}}
	}
	get := func(accept string) string {
		_, text := r.do(http.MethodGet, "/tried?id=7", "", signed("ann"), "Accept: "+accept)
		return text
	}
	for _, accept := range []string{"text/html", "text/plain"} {
		text := get(accept)
		require.NotContains(t, text, "hunter2")
		require.Contains(t, text, "Masked values: 2")
		require.Contains(t, text, "ann", "what is not masked is shown")
	}
	require.Equal(t, 1, strings.Count(get("text/html"), `name="reveal"`), "the other panel can't be revealed")
	_, text := r.do(http.MethodGet, "/api/v1/tried?id=7", "", signed("ann"))
	require.NotContains(t, text, "hunter2")
	require.Contains(t, text, `"masked": 2`)
	_, text = r.do(http.MethodGet, "/tried?id=7&panel=order&reveal=yes&why=x", "", signed("ann"))
	require.NotContains(t, text, "hunter2", "an address reveals nothing")
	require.Empty(t, done)

	for name, c := range map[string]struct {
		path   string
		form   url.Values
		status int
		says   string
		header string
	}{
		"no reason":         {"/tried?id=7", form("order", ""), http.StatusBadRequest, "why is required", ""},
		"no reason, API":    {"/api/v1/tried?id=7", form("order", ""), http.StatusBadRequest, "why is required", ""},
		"a reason, address": {"/tried?id=7&why=x", form("order", ""), http.StatusBadRequest, "why is required", ""},
		"no such panel":     {"/tried?id=7", form("absent", "x"), http.StatusNotFound, "", ""},
		"no reveal":         {"/api/v1/tried?id=7", form("other", "x"), http.StatusNotFound, "has no panel", ""},
		"another site":      {"/tried?id=7", form("order", "x"), http.StatusForbidden, "Pages of other origins", "Sec-Fetch-Site: cross-site"},
	} {
		headers := []string{signed("ann")}
		if c.header != "" {
			headers = append(headers, c.header)
		}
		answer, text := r.post(c.path, c.form, headers...)
		require.Equal(t, c.status, answer.StatusCode, name)
		require.Contains(t, text, c.says, name)
		require.NotContains(t, text, "hunter2", name)
		require.Empty(t, done, name)
	}

	answer, text := r.post("/tried?id=7", form("order", "ticket 7"), signed("ann"))
	require.Equal(t, http.StatusOK, answer.StatusCode, text)
	require.Contains(t, text, "{&#34;secret&#34;: &#34;hunter2&#34;, &#34;name&#34;: &#34;ann&#34;}")
	require.Contains(t, text, "hunter2-field")
	require.Contains(t, text, "Cookie: [masked]", "only what was asked for is shown")
	require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
	_, text = r.post("/api/v1/tried?id=7", form("order", "ticket 8"), signed("ann"))
	require.Contains(t, text, `{\"secret\": \"hunter2\", \"name\": \"ann\"}`)
	require.Equal(t, []string{"7", "ann (console, operator)", "ticket 7", "7", "ann (API, operator)", "ticket 8"},
		[]string{done[0].order, done[0].use.Who, done[0].use.Why, done[1].order, done[1].use.Who, done[1].use.Why})
	require.NotContains(t, get("text/html"), "hunter2")
	require.NotContains(t, r.log.String(), "hunter2")

	viewer := start(t, func(c *console.Config) {
		c.UsersFile = usersFile(t)
		c.Roles = map[string]operate.Role{"ann": operate.Operator}
	}, secretPage(func(revealed) error { panic("it was recorded") }))
	for _, path := range []string{"/tried?id=7", "/api/v1/tried?id=7"} {
		answer, text := viewer.post(path, form("order", "ticket 7"), signed("ann"))
		require.Equal(t, http.StatusForbidden, answer.StatusCode)
		require.Contains(t, text, "needs the role admin (plugins.console.reveal_role), and ann has the role operator")
		require.NotContains(t, text, "hunter2")
	}
	_, text = viewer.do(http.MethodGet, "/tried?id=7", "", signed("ann"))
	require.Contains(t, text, "Seeing them needs the role admin.")
	require.NotContains(t, text, `name="reveal"`)

	reader := start(t, func(c *console.Config) { c.ReadOnly = true }, secretPage(func(revealed) error { panic("it was recorded") }))
	for _, path := range []string{"/tried?id=7", "/api/v1/tried?id=7"} {
		answer, text := reader.post(path, form("order", "ticket 7"))
		require.Equal(t, http.StatusForbidden, answer.StatusCode)
		require.Contains(t, text, "this console only reads")
		require.NotContains(t, text, "hunter2")
	}
	require.NotContains(t, reader.get("/tried?id=7"), `name="reveal"`)
}

// What can't be recorded is not shown.
func TestNothingIsRevealedWithoutItsRecord(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	for name, c := range map[string]struct {
		record func(revealed) error
		status int
		says   string
	}{
		"the server is away": {func(revealed) error { return errors.New("connection refused") }, http.StatusInternalServerError, "could not be recorded, so nothing is shown: connection refused"},
		"it panics":          {func(revealed) error { panic("nil client") }, http.StatusInternalServerError, "nil client"},
		"no such thing":      {func(revealed) error { return pages.ErrNothing }, http.StatusNotFound, "no such thing any more"},
		"it hangs":           {func(revealed) error { <-end; return nil }, http.StatusServiceUnavailable, "the audit did not answer"},
	} {
		r := start(t, nil, secretPage(c.record))
		r.plugin.Hurried()
		for _, path := range []string{"/tried?id=7", "/api/v1/tried?id=7"} {
			answer, text := r.post(path, url.Values{"panel": {"order"}, "reveal": {"yes"}, "why": {"x"}})
			require.Equal(t, c.status, answer.StatusCode, name)
			require.Contains(t, text, c.says, name)
			require.NotContains(t, text, "hunter2", name)
		}
	}
	t.Cleanup(func() { close(end) }) // before the stop of the rigs
}

func TestMasksAreASetting(t *testing.T) {
	t.Parallel()
	all := start(t, func(c *console.Config) { c.MaskedFields = nil }, secretPage(func(revealed) error { return nil }))
	require.Contains(t, all.get("/tried"), "hunter2")
	require.NotContains(t, all.get("/tried"), `name="reveal"`)
	names := start(t, func(c *console.Config) { c.MaskedFields = []string{"name"} }, secretPage(func(revealed) error { return nil }))
	require.Contains(t, names.get("/tried"), "{&#34;secret&#34;: &#34;hunter2&#34;, &#34;name&#34;: &#34;[masked]&#34;}")
	bad := console.DefaultConfig()
	bad.MaskedFields, bad.RevealRole = []string{"password", "-_"}, "root"
	err := bad.Validate()
	require.ErrorContains(t, err, `masked_fields[1]: must have a letter or a digit`)
	require.ErrorContains(t, err, `reveal_role: must be viewer, operator or admin, got "root"`)
}

func TestMasks(t *testing.T) {
	t.Parallel()
	m := console.NewMasks("password", "api_key", "email", "authorization")
	for in, want := range map[string]string{
		`{"password":"x","a":[1,2.50,null,true],"b":"c"}`:             `{"password":"[masked]","a":[1,2.50,null,true],"b":"c"}`,
		` { "n" : 1152921504606846977 , "userEmail" : {"a":["x"]} } `: ` { "n" : 1152921504606846977 , "userEmail" : "[masked]" } `,
		`{"pass\u0077ord":"x","PASSWORD_HASH":5,"API-Key":["x"]}`:     `{"pass\u0077ord":"[masked]","PASSWORD_HASH":"[masked]","API-Key":"[masked]"}`,
		`{"password":null,"password":"x","password":"y"}`:             `{"password":null,"password":"[masked]","password":"[masked]"}`,
		`[{"a":"b","email":"x"},"x",5,null,["x"]]`:                    `[{"a":"b","email":"[masked]"},"[masked]","[masked]",null,["[masked]"]]`,
		`{"body":"{\"email\":\"x\",\"n\":[1,\"c\"]}"}`:                `{"body":"{\"email\":\"[masked]\",\"n\":[1,\"c\"]}"}`,
		`{"body":"said: {\"email\": \"x\"} <b>"}`:                     `{"body":"said: {\"email\": \"[masked]\"} <b>"}`,
		`{"a":"\"}{[","b":"\\","email":"\\\"x"}`:                      `{"a":"\"}{[","b":"\\","email":"[masked]"}`,
		`{}`:                                                          `{}`, `[]`: `[]`, ``: ``, ` [ ] `: ` [ ] `,
		`"x"`:  "3 bytes, which are hidden because only JSON has fields that can be masked",
		`17`:   "2 bytes, which are hidden because only JSON has fields that can be masked",
		`{"a`:  "3 bytes, which are hidden because only JSON has fields that can be masked",
		"\xff": "1 bytes, which are hidden because only JSON has fields that can be masked",
	} {
		require.Equal(t, want, m.Payload([]byte(in)), in)
	}
	for in, want := range map[string]string{
		`status 400: {"email": "x", "n": 5}`:                       `status 400: {"email": "[masked]", "n": 5}`,
		`got {"n": 5, "password": 17, "b": true}`:                  `got {"n": 5, "password": [masked], "b": true}`,
		`cut off: {"password": "secr`:                              `cut off: {"password": "[masked]"`,
		`cut off: {"password": {"a": "x`:                           `cut off: {"password": [masked]`,
		`cut off: {"password":`:                                    `cut off: {"password":`,
		`quoted "{\"email\":\"x\\\"y\",\"n\":1}"`:                  `quoted "{\"email\":\"[masked]\",\"n\":1}"`,
		`Post "https://a.example/b?api_key=x&n=5&email=y": EOF`:    `Post "https://a.example/b?api_key=[masked]&n=5&email=[masked]": EOF`,
		`sent Authorization: Bearer abcdefgh12345 to the far side`: `sent Authorization: Bearer [masked] to the far side`,
		`{"email":"x"}`: `{"email":"[masked]"}`,
		`the password is wrong: token expired, no "email" given`: `the password is wrong: token expired, no "email" given`,
		`a="b" c==d e=`:                 `a="b" c==d e=`,
		`password='a b' email="x, y" n`: `password='[masked]' email="[masked]" n`,
		`password='a b, cut`:            `password='[masked]'`,
		`to=https://a/?next=email=x&b`:  `to=https://a/?next=email=[masked]&b`,
	} {
		require.Equal(t, want, m.Text(in), in)
	}
}

// FuzzMasks checks that masked JSON is JSON with the same names, and that a masked value is in no answer.
func FuzzMasks(f *testing.F) {
	for _, seed := range []string{`{"a":[{"password":{"b":"needle"}}]}`, `[[["needle"]]]`, `{"a":"{\"password\":\"needle\"}"}`, `{"\u0070assword":["needle"]}`, `{"a":"\\\"","password":"needle"} `, `{"password":"needle`} {
		f.Add(seed)
	}
	m := console.NewMasks("password")
	f.Fuzz(func(t *testing.T, text string) {
		began := time.Now()
		m.Text(text)
		require.NoError(t, console.SameShape(text, m.Payload([]byte(text))))
		require.Less(t, time.Since(began), time.Minute)
	})
}

// leaky is a plugin whose action and audit say too much.
type leaky struct{}

const leak = `status 400: {"password": "hunter2", "n": 5}`

func (leaky) Name() string                          { return "leaky" }
func (l leaky) Register(r *pipeline.Registry) error { r.Offer(l); return nil }

func (leaky) AuditLogs() []operate.AuditLog {
	return []operate.AuditLog{{Name: "leaky", Title: "Leaky", Recent: func(context.Context, operate.AuditFilter, int) (operate.AuditPage, error) {
		return operate.AuditPage{Changes: []operate.Change{{ID: "1", Who: "ann", Why: leak, Action: "pour", Detail: leak}}}, nil
	}}}
}

func (leaky) Operations() operate.Operations {
	answer := operate.Answer{
		Value: map[string]any{"said": leak, "token": "made for you"}, Lines: []string{leak}, Notes: []string{leak},
		Tables: []operate.Table{{Columns: []string{"SAID"}, Rows: [][]string{{leak}}}}, Checks: []operate.Check{{Name: "far side", Level: operate.Warn, Text: leak, Remedy: leak}},
	}
	return operate.Operations{Actions: []operate.Action{{
		About: operate.About{Name: "pour", Short: "Pour", Examples: []string{"pour"}, Fields: []operate.Field{{Name: "fail", Type: operate.Switch}}}, Danger: operate.Safe, Role: operate.Operator,
		Preview: func(_ context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			if in.Switch("fail") {
				return operate.Answer{}, errors.New(leak)
			}
			return answer, nil
		},
		Do: func(_ context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			use.Tell(leak)
			if in.Switch("fail") {
				return answer, errors.New(leak)
			}
			return answer, nil
		},
	}}}
}

// What actions and audits say is masked, too, while the fields of an answer keep their values: they are those
// of the action, such as a token that it has made.
func TestActionsAndAuditsSayNoSecret(t *testing.T) {
	t.Parallel()
	r := start(t, nil, leaky{}, page(loading("broken", nil, errors.New(leak))))
	var all []string
	for _, fail := range []string{"true", "false"} {
		for _, dry := range []string{"true", "false"} {
			_, text := r.do(http.MethodPost, "/api/v1/actions/pour", `{"dry_run":`+dry+`,"input":{"fail":`+fail+`}}`, "Content-Type: application/json")
			all = append(all, text)
		}
	}
	require.Contains(t, all[3], `"token": "made for you"`)
	_, text := r.post("/actions/pour", url.Values{"step": {"preview"}, "in.fail": {"true"}})
	all = append(all, text)
	confirm, text := r.previewed("/actions/pour", url.Values{})
	answer, _ := r.post("/actions/pour", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	all = append(all, text, r.get(answer.Header.Get("Location")), r.get("/api/v1"+answer.Header.Get("Location")), r.get("/tried"), r.get("/api/v1/tried"), r.get("/audit"), r.get("/api/v1/audit"), r.get("/audit.csv"))
	for i, text := range all {
		require.Contains(t, text, "[masked]", i)
		require.NotContains(t, text, "hunter2", i)
	}
	r.requireMasked()
}
