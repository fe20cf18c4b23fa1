package effects_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

const (
	shopToken  = "the token of the shop"
	otherToken = "a token of somebody else"
	depotToken = "the token of the depot"
	slowToken  = "the token of a slow one"
)

const overHTTP = invoices + `
    http: {kinds: [invoice, parcel], clients: {shop: {token: "` + shopToken + `"}, depot: {token: "` + depotToken + `", kinds: [parcel]}}}
  web: {listen: "127.0.0.1:0"}
`

// parcel is a kind that is written in Go.
type parcel struct {
	Shop string `json:"shop"`
	ID   string `json:"id"`
}

type parcels struct {
	config  once.KindConfig
	effects *once.Effects[parcel]
}

func newParcels(o *once.Plugin) *parcels {
	p := &parcels{config: once.DefaultKind("")}
	p.effects = once.New(o, once.Kind[parcel]{
		Name: "parcel", Repeat: once.Never,
		Key: func(v parcel) (once.Key, error) { return once.Key{Group: v.Shop, ID: v.ID}, nil },
		Call: func(_ context.Context, a once.Attempt[parcel]) once.Answer {
			return once.IsDone("parcel " + a.Value.ID)
		},
	}, &p.config)
	return p
}

func (*parcels) Name() string                          { return "parcels" }
func (p *parcels) Register(r *pipeline.Registry) error { return p.effects.Register(r) }

// answered is an answer of POST /once/{kind}.
type answered struct {
	status int
	header http.Header
	Kind, Group, Key, Receipt, Class,
	Error, Message string
	State      rules.State
	GroupState rules.GroupState `json:"group_state"`
}

// post sends a body with a token, which may be empty.
func (w *world) post(t testing.TB, kind, bearer, body string) answered {
	t.Helper()
	return w.do(t, http.MethodPost, "/once/"+kind, bearer, body)
}

func (w *world) do(t testing.TB, method, path, bearer, body string, header ...string) (a answered) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.web.Addr()+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	got, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &a), string(text))
	a.status, a.header = got.StatusCode, got.Header
	return a
}

// A client follows its effect at the address that the acceptance names.
func TestTheStateOfAnEffectOverHTTP(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		api.next("POST /billing/v1/invoices", reply{status: http.StatusUnprocessableEntity, body: `{"error":{"code":"no_such_customer","text":"who?"}}`})
		w := newWorld(t, dsn)
		w.start(t, overHTTP, dsn, api)
		const payload = `{"invoice":{"customer":"ac me","number":"a/17 ?"}}`
		a := w.post(t, "invoice", shopToken, `{"key":"a/17 ?","payload":`+payload+`}`)
		require.Equal(t, http.StatusAccepted, a.status, a)
		at := a.header.Get("Location")
		require.Equal(t, "/once/invoice/a%2F17%20%3F?group=ac+me", at)
		w.settled(t, "invoice", payload)
		a = w.do(t, http.MethodGet, at, shopToken, "")
		require.Equal(t, http.StatusOK, a.status, a)
		require.Equal(t, []string{"invoice", "ac me", "a/17 ?", "FAILED", "RUNNING", "422 Unprocessable Entity: no_such_customer who?"},
			[]string{a.Kind, a.Group, a.Key, string(a.State), string(a.GroupState), a.Error})
		require.Equal(t, "no-store", a.header.Get("Cache-Control"))

		// What the process could not do names servers, which clients need not know.
		api.next("POST /billing/v1/invoices", reply{drop: true})
		const lost = `{"invoice":{"customer":"acme","number":"18"}}`
		at18 := w.post(t, "invoice", shopToken, `{"key":"18","payload":`+lost+`}`).header.Get("Location")
		require.Eventually(t, func() bool { a = w.do(t, http.MethodGet, at18, shopToken, ""); return a.Class != "" }, patience, 5*time.Millisecond)
		require.Empty(t, a.Error)
		require.NotEmpty(t, w.state(t, "invoice", lost).Error, "an operator reads it")

		w.cancel(t, "invoice", "ac me")
		require.Equal(t, rules.GroupCancelled, w.do(t, http.MethodGet, at, shopToken, "").GroupState)

		for name, c := range map[string]struct {
			path, token string
			status      int
			word        string
		}{
			"no token":                {at, "", http.StatusUnauthorized, "no_token"},
			"another token":           {at, otherToken, http.StatusForbidden, "other_token"},
			"a kind of other clients": {at, depotToken, http.StatusForbidden, "other_kind"},
			"another kind":            {"/once/mail/17?group=acme", shopToken, http.StatusNotFound, "unknown_kind"},
			"another key":             {"/once/invoice/19?group=ac+me", shopToken, http.StatusNotFound, "unknown_effect"},
			"another group":           {"/once/invoice/a%2F17%20%3F?group=acme", shopToken, http.StatusNotFound, "unknown_effect"},
			"a key that can't be":     {"/once/invoice/%00?group=acme", shopToken, http.StatusBadRequest, "bad_key"},
			"without a group":         {"/once/invoice/17", shopToken, http.StatusBadRequest, "no_group"},
		} {
			a := w.do(t, http.MethodGet, c.path, c.token, "")
			require.Equal(t, c.status, a.status, name)
			require.Equal(t, c.word, a.Error, name)
		}

		breakLedger(t, dsn)
		a = w.do(t, http.MethodGet, at, shopToken, "")
		require.Equal(t, http.StatusServiceUnavailable, a.status, a)
		require.Equal(t, "unavailable", a.Error)
		require.Equal(t, "the ledger does not answer; ask again later", a.Message)
		require.NotEmpty(t, a.header.Get("Retry-After"))
	})
}

// The call of the far side is in the trace of the client that asked for the effect.
func TestTheTraceOfAClientGoesOn(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		w := newWorld(t, dsn)
		w.start(t, overHTTP, dsn, api)
		const trace, payload = "0af7651916cd43dd8448eb211c80319c", `{"invoice":{"customer":"acme","number":"17"}}`
		a := w.do(t, http.MethodPost, "/once/invoice", shopToken, `{"key":"17","payload":`+payload+`}`, "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
		require.Equal(t, http.StatusAccepted, a.status, a)
		w.settled(t, "invoice", payload)
		require.Contains(t, api.requests(http.MethodPost, "/billing/v1/invoices")[0].header.Get("Traceparent"), trace)
	})
}

func TestEffectsOverHTTP(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		w := newWorld(t, dsn)
		w.start(t, overHTTP, dsn, api)
		const body = `{"key": "17", "group": "acme", "payload": {"invoice": {"customer": "acme", "number": "17", "cents": 1}}}`
		a := w.post(t, "invoice", shopToken, body)
		require.Equal(t, http.StatusAccepted, a.status, a)
		require.Equal(t, []string{"invoice", "acme", "17", "PENDING"}, []string{a.Kind, a.Group, a.Key, string(a.State)})
		s := w.settled(t, "invoice", `{"invoice":{"customer":"acme","number":"17","cents":1}}`)
		require.Equal(t, rules.Success, s.State)

		// The same request in another form, and without the group, is the same effect.
		a = w.post(t, "invoice", shopToken, `{"key":"17","payload":{"invoice":{"customer":"acme","number":"17","cents":1}}}`)
		require.Equal(t, http.StatusOK, a.status, a)
		require.Equal(t, rules.Success, a.State)
		require.Equal(t, "71", a.Receipt)

		a = w.post(t, "invoice", shopToken, strings.ReplaceAll(body, `"cents": 1`, `"cents": 2`))
		require.Equal(t, http.StatusConflict, a.status, a)
		require.Equal(t, "effect_conflict", a.Error)
		require.Equal(t, "invoice:acme:17 exists with another request, which stands: use another key, or send what was sent first", a.Message)
		require.Equal(t, 1, api.executed("invoice:acme:17"))
		require.Len(t, api.requests(http.MethodPost, "/billing/v1/invoices"), 1)

		// A kind that is written in Go.
		a = w.post(t, "parcel", shopToken, `{"key":"5","payload":{"shop":"de","id":"5"}}`)
		require.Equal(t, http.StatusAccepted, a.status, a)
		require.Equal(t, "parcel 5", w.settled(t, "parcel", `{"shop":"de","id":"5"}`).Receipt)

		// A time in the request wins over that of the payload.
		later := time.Now().Add(24 * time.Hour).Format(time.RFC3339)
		a = w.post(t, "invoice", shopToken, `{"key":"18","not_before":"`+later+`","payload":{"invoice":{"customer":"acme","number":"18"}}}`)
		require.Equal(t, http.StatusAccepted, a.status, a)
		s = w.state(t, "invoice", `{"invoice":{"customer":"acme","number":"18"}}`)
		require.Equal(t, rules.Pending, s.State)
		require.Greater(t, s.NextIn, 22*time.Hour)
	})
}

func TestWhatIsRefusedOverHTTP(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, overHTTP, dsn, api)
	const payload = `{"invoice":{"customer":"acme","number":"17"}}`
	for name, c := range map[string]struct {
		kind, token, body string
		status            int
		word, message     string
	}{
		"no token":                {"invoice", "", "{}", http.StatusUnauthorized, "no_token", "present a token in the header Authorization, as a bearer token"},
		"another token":           {"invoice", otherToken, "{}", http.StatusForbidden, "other_token", "the token is none of plugins.effects.http.clients"},
		"a kind of other clients": {"invoice", depotToken, "{}", http.StatusForbidden, "other_kind", "plugins.effects.http.clients.depot.kinds does not have invoice: depot may ask for parcel"},
		"its own kind":            {"parcel", depotToken, "{", http.StatusBadRequest, "bad_body", "the body must be a JSON object"},
		"another kind":            {"mail", shopToken, "{}", http.StatusNotFound, "unknown_kind", `no kind "mail" may be asked for here: shop may ask for invoice, parcel`},
		"no JSON":                 {"invoice", shopToken, "{", http.StatusBadRequest, "bad_body", "the body must be a JSON object with key, group, payload and not_before: unexpected EOF"},
		"an unknown member":       {"invoice", shopToken, `{"id":"17"}`, http.StatusBadRequest, "bad_body", `the body must be a JSON object with key, group, payload and not_before: json: unknown field "id"`},
		"two objects":             {"invoice", shopToken, `{"key":"17","payload":{}}{}`, http.StatusBadRequest, "bad_body", "the body has something after its JSON object"},
		"no key":                  {"invoice", shopToken, `{"payload":` + payload + `}`, http.StatusBadRequest, "bad_body", "key must be set: it names the effect, as the kind finds it in the payload"},
		"a key with a fraction":   {"invoice", shopToken, `{"key":17.0,"payload":` + payload + `}`, http.StatusBadRequest, "bad_body", "the body must be a JSON object with key, group, payload and not_before: key and group must be a text or a whole number, not a number with a fraction or an exponent"},
		"no payload":              {"invoice", shopToken, `{"key":"17","payload":null}`, http.StatusBadRequest, "bad_body", "payload must be set: it is what a record of the kind's topic would be"},
		"another key":             {"invoice", shopToken, `{"key":"18","payload":` + payload + `}`, http.StatusUnprocessableEntity, "other_key", `the payload names another effect: it has the group "acme" and the key "17"`},
		"another group":           {"invoice", shopToken, `{"key":"17","group":"b","payload":` + payload + `}`, http.StatusUnprocessableEntity, "other_key", `the payload names another effect: it has the group "acme" and the key "17"`},
		"a payload without it":    {"invoice", shopToken, `{"key":"17","payload":{"invoice":{"customer":"acme"}}}`, http.StatusUnprocessableEntity, "bad_payload", "once: the key of a record of kind invoice: key: the record has no invoice.number"},
		"a payload of Go":         {"parcel", shopToken, `{"key":"17","payload":{"shop":5}}`, http.StatusUnprocessableEntity, "bad_payload", "json: cannot unmarshal number"},
		"a key of Go is missing":  {"parcel", shopToken, `{"key":"17","payload":{"shop":"de"}}`, http.StatusUnprocessableEntity, "bad_payload", `once: the key of a record of kind parcel: once: not a key: id "" has 0 bytes: want 1 to 100`},
		"too much":                {"invoice", shopToken, `{"key":"` + strings.Repeat("x", 64<<10) + `"}`, http.StatusRequestEntityTooLarge, "too_large", "the body may have 65536 bytes"},
	} {
		a := w.post(t, c.kind, c.token, c.body)
		require.Equal(t, c.status, a.status, name)
		require.Equal(t, c.word, a.Error, name)
		require.Contains(t, a.Message, c.message, name)
	}
	require.Empty(t, api.requests(http.MethodPost, "/billing/v1/invoices"))
}

// A group that is cancelled takes nothing more.
func TestACancelledGroupIsRefusedOverHTTP(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, overHTTP, dsn, api)
	body := func(number string) string {
		return `{"key":"` + number + `","payload":{"invoice":{"customer":"acme","number":"` + number + `"}}}`
	}
	require.Equal(t, http.StatusAccepted, w.post(t, "invoice", shopToken, body("1")).status)
	w.cancel(t, "invoice", "acme")
	a := w.post(t, "invoice", shopToken, body("2"))
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, "cancelled", a.Error)
	require.Equal(t, "invoice:acme:2 is cancelled with its group, for good", a.Message)
}

func TestAClientThatAsksTooOftenIsRefused(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	settings := strings.Replace(overHTTP, `clients: {`, `requests_per_minute: 1, clients: {slow: {token: "`+slowToken+`"}, `, 1)
	w.start(t, settings, dsn, api)
	require.Equal(t, http.StatusBadRequest, w.post(t, "invoice", slowToken, "{}").status)
	a := w.post(t, "invoice", slowToken, "{}")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "too_many", a.Error)
	require.Equal(t, "slow may send 1 requests a minute", a.Message)
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
	require.Equal(t, http.StatusBadRequest, w.post(t, "invoice", shopToken, "{}").status, "each token has its own")
}

// A ledger that does not answer is no reason to lose an effect: the client is told to come again.
func TestALedgerThatDoesNotAnswerIsToldOverHTTP(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, overHTTP, dsn, api)
	const body = `{"key":"17","payload":{"invoice":{"customer":"acme","number":"17"}}}`
	release := lock(t, dsn)
	a := w.post(t, "invoice", shopToken, body)
	require.Equal(t, http.StatusServiceUnavailable, a.status, a)
	require.Equal(t, "unavailable", a.Error)
	require.Equal(t, "5", a.header.Get("Retry-After"))
	require.NotContains(t, a.Message, "sqlite")
	release()
	require.Eventually(t, func() bool { return w.post(t, "invoice", shopToken, body).status/100 == 2 }, patience, 10*time.Millisecond)
	require.Equal(t, rules.Success, w.settled(t, "invoice", `{"invoice":{"customer":"acme","number":"17"}}`).State)
	require.Equal(t, 1, api.executed("invoice:acme:17"))
}

// Without kinds there is no address, and no need of a server.
func TestOverHTTPIsOffUnlessConfigured(t *testing.T) {
	t.Parallel()
	dsn := sqldbtest.File(t)
	w := newWorld(t, dsn)
	w.start(t, invoices+"\n  web: {listen: \"127.0.0.1:0\"}\n", dsn, newFar(t, true))
	require.Empty(t, w.web.Addr(), "the server has no handler, so it does not listen")
}

func TestMistakesOfHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sqldbtest.File(t))
	code, printed := w.validate(t, `plugins:
  effects:
    kinds:
      parcel: {repeat: never, key: id, group: to, request: {path: /x}, answers: {receipt: id}, api: {url: "http://127.0.0.1"}}
    http:
      kinds: [parcel, mail, parcel]
      requests_per_minute: 0
      clients:
        shop: {token: short}
        other: {token: "`+otherToken+`", kinds: [parcel, box]}
        third: {token: "`+otherToken+`"}
        void:
`)
	require.Equal(t, app.ExitUsage, code)
	require.Equal(t, `mill: the settings have mistakes:
  mill.yaml:4: plugins.effects.kinds.parcel: a plugin of this binary has a kind parcel: choose another name
  mill.yaml:6: plugins.effects.http.kinds[2]: "parcel" is in the list already
  mill.yaml:6: plugins.effects.http.kinds[1]: must be the name of a kind, got "mail": there are parcel, parcel
  mill.yaml:7: plugins.effects.http.requests_per_minute: must be > 0, got 0
  mill.yaml:9: plugins.effects.http.clients.shop.token: must have at least 16 characters
  mill.yaml:10: plugins.effects.http.clients.other.kinds[1]: must be one of http.kinds, got "box": there are parcel, mail, parcel
  mill.yaml:11: plugins.effects.http.clients.third.token: must not be the token of other: each client has a rate and a name of its own
  mill.yaml:12: plugins.effects.http.clients.void: must be a section with the token of the client
`, printed)
	code, printed = newWorld(t, sqldbtest.File(t)).validate(t, "plugins: {effects: {http: {kinds: [mail]}}}\n")
	require.Equal(t, app.ExitUsage, code)
	require.Equal(t, `mill: the settings have mistakes:
  mill.yaml:1: plugins.effects.http.clients: must have a client with its token: without one nobody may ask for an effect
  mill.yaml:1: plugins.effects.http.kinds[0]: must be the name of a kind, got "mail": there are parcel
`, printed)
}
