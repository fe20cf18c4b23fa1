package console_test

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

// described is the API as a process describes it.
func (r *rig) described() *openapi3.T {
	r.t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(r.get("/api/v1/openapi.json")))
	require.NoError(r.t, err)
	require.NoError(r.t, doc.Validate(r.t.Context()))
	return doc
}

// fits validates a JSON text.
func fits(t *testing.T, schema *openapi3.SchemaRef, text string) error {
	t.Helper()
	var value any
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	return schema.Value.VisitJSON(value)
}

// fitsWholly also requires that each field is described.
func fitsWholly(t *testing.T, schema *openapi3.SchemaRef, text string) {
	t.Helper()
	require.NoError(t, fits(t, schema, text), text)
	var value any
	require.NoError(t, json.Unmarshal([]byte(text), &value))
	var look func(s *openapi3.SchemaRef, value any)
	look = func(s *openapi3.SchemaRef, value any) {
		switch v := value.(type) {
		case []any:
			for _, one := range v {
				if s.Value.Items != nil {
					look(s.Value.Items, one)
				}
			}
		case map[string]any:
			for name, one := range v {
				if s.Value.Properties != nil {
					require.Contains(t, s.Value.Properties, name)
					look(s.Value.Properties[name], one)
				}
			}
		}
	}
	look(schema, value)
}

// The description is valid, and has what the API takes and answers: each page, and each action with its fields.
func TestTheAPIIsDescribed(t *testing.T) {
	t.Parallel()
	x := newTill()
	asked := pages.Panel{Name: "asked", Title: "Asked", Asked: true, Load: func(context.Context, pages.Query) (pages.Block, error) { return pages.Text("here"), nil }}
	secret := secretPage(func(revealed) error { return nil })
	r := start(t, nil, x, append(secret, pages.Page{Path: "asked", Title: "Asked", Panels: []pages.Panel{asked}}))
	doc := r.described()
	require.Empty(t, doc.Servers, "the paths are those of the host")

	body := func(path string) *openapi3.SchemaRef {
		return doc.Paths.Value("/api/v1/actions/" + path).Post.RequestBody.Value.Content["application/json"].Schema
	}
	for _, right := range []string{
		`{"input":{"order":"7"},"dry_run":true}`, `{"input":{"order":"7","amount":3,"item":["a,b"],"express":true},"why":"broken","use":"a-1"}`,
	} {
		require.NoError(t, fits(t, body("till/refund"), right), right)
		status, answer := r.send("till/refund", right)
		require.Equal(t, 200, status, answer)
	}
	require.NoError(t, fits(t, body("till/open"), `{}`))
	for _, wrong := range []string{ // as TestWrongFieldsAreNamed
		`{"why":"x"}`, `{"input":{"order":7},"why":"x"}`, `{"input":{"order":"7","amount":1.5},"why":"x"}`, `{"input":{"order":"7","item":"a"},"why":"x"}`,
		`{"input":{"order":"7","express":"yes"},"why":"x"}`, `{"input":{"order":"7","amuont":1},"why":"x"}`, `{"input":{"order":"7"},"why":"x","use":"a b"}`,
		`{"input":{"order":"7"},"reason":"x"}`,
	} {
		require.Error(t, fits(t, body("till/refund"), wrong), wrong)
	}
	amount := body("till/refund").Value.Properties["input"].Value.Properties["amount"].Value
	require.InDelta(t, 5, amount.Default, 0)
	require.Equal(t, []any{"operator", "irreversible"}, []any{doc.Paths.Value("/api/v1/actions/till/refund").Post.Extensions["x-role"], doc.Paths.Value("/api/v1/actions/till/refund").Post.Extensions["x-danger"]})

	answered := func(path string, get bool, status int) *openapi3.SchemaRef {
		op := doc.Paths.Value(path).Post
		if get {
			op = doc.Paths.Value(path).Get
		}
		if answer := op.Responses.Status(status); answer != nil {
			return answer.Value.Content["application/json"].Schema
		}
		return op.Responses.Default().Value.Content["application/json"].Schema
	}
	for _, path := range []string{"/api/v1/", "/api/v1/actions", "/api/v1/orders", "/api/v1/home", "/api/v1/asked", "/api/v1/tried"} {
		fitsWholly(t, answered(path, true, 200), r.get(path))
	}
	require.Contains(t, r.get("/api/v1/asked"), `"at": null`, "nobody has asked")
	require.Nil(t, doc.Paths.Value("/api/v1/orders").Post)
	_, text := r.do("POST", "/api/v1/asked?panel=asked", "")
	require.Contains(t, text, "here")
	fitsWholly(t, answered("/api/v1/asked", false, 200), text)
	_, text = r.do("POST", "/api/v1/actions/till/refund", `{"input":{"order":"7"},"dry_run":true}`, "Content-Type: application/json")
	fitsWholly(t, answered("/api/v1/actions/till/refund", false, 200), text)
	_, text = r.do("POST", "/api/v1/actions/till/refund", `{}`, "Content-Type: application/json")
	require.NoError(t, fits(t, answered("/api/v1/actions/till/refund", false, 400), text))

	var pages struct{ Pages []struct{ Page string } }
	require.NoError(t, json.Unmarshal([]byte(r.get("/api/v1/")), &pages))
	for _, p := range pages.Pages {
		require.NotNil(t, doc.Paths.Value("/api/v1/"+p.Page), p.Page)
	}
}

// What a command of the README sends is in the description: each value of an address, and each field of a form.
func TestWhatTheREADMESendsIsDescribed(t *testing.T) {
	t.Parallel()
	letter := loading("letter", pages.Text("letter"), nil)
	letter.Values, letter.Reveal = []string{"id"}, func(context.Context, pages.Query, operate.Use) error { return nil }
	doc := start(t, nil, contributor{{Path: "dead-letters/letter", Title: "Letter", Panels: []pages.Panel{letter}}},
		ledgers{[]operate.AuditLog{recorded("dead-letters", 1, "ann")}}).described()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	commands := regexp.MustCompile(`curl -s '?http://127.0.0.1:9465(/api/v1/[a-z/-]+)\?([^' ]+)'?([^\n]*)`).FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(commands), 3)
	for _, c := range commands {
		item := doc.Paths.Value(c[1])
		require.NotNil(t, item, c[1])
		values, err := url.ParseQuery(c[2])
		require.NoError(t, err)
		for name := range values {
			require.NotNil(t, item.Parameters.GetByInAndName("query", name), "%s of %s", name, c[1])
		}
		for _, field := range regexp.MustCompile(`-d '?([a-z]+)=`).FindAllStringSubmatch(c[3], -1) {
			form := item.Post.RequestBody.Value.Content["application/x-www-form-urlencoded"].Schema
			require.Contains(t, form.Value.Properties, field[1], c[1])
		}
	}
}

// A console that only reads describes no action, and one behind a proxy its prefix.
func TestTheDescriptionIsThatOfTheProcess(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *console.Config) { c.ReadOnly = true }, newTill())
	for path := range r.described().Paths.Map() {
		require.NotContains(t, path, "actions")
	}
	r = start(t, func(c *console.Config) { c.Prefix = "/millrace" }, newTill())
	r.base += "/millrace"
	require.Equal(t, "/millrace", r.described().Servers[0].URL)
}
