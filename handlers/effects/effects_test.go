package effects_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/effects"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		tokens, streams, o := token.New(), sse.New(), once.NewPlugin(nil, nil)
		server := web.New(tokens, streams)
		return []pipeline.Plugin{o, tokens, streams, server, effects.New(o, server)}
	})
}

// A kind needs the plugins that its settings name.
func TestWhatKindsOfSettingsNeed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kinds map[string]*effects.Kind
		want  []string
	}{
		{nil, nil},
		{map[string]*effects.Kind{"mail": {}, "empty": nil}, []string{"once"}},
		{map[string]*effects.Kind{"mail": {Effects: once.KindConfig{Topic: "mails"}}, "parcel": {}}, []string{"deadletter", "kafka", "once"}},
		{map[string]*effects.Kind{"mail": {Effects: once.KindConfig{Via: once.ViaStreams}}}, []string{"once", "reclaim", "redis"}},
	} {
		topics := kafka.New()
		p := effects.New(once.NewPlugin(topics, deadletter.New(topics)), web.New(token.New(), sse.New()))
		p.Settings().(*effects.Config).Kinds = c.kinds
		require.ElementsMatch(t, c.want, p.Needs())
	}
}

// A kind of settings has the names in Redis that its owner has set.
func TestNamesInRedisOfAKindOfSettings(t *testing.T) {
	t.Parallel()
	shared, public := redis.New(), web.New(token.New(), sse.New())
	o := oncetest.New(t).Once.UseStreams(shared)
	p := effects.New(o, public)
	k := &effects.Kind{}
	k.SetDefaults()
	k.Repeat, k.Effects.Via, k.Names = "never", once.ViaStreams, once.Names{Stream: "SHOP-STREAM:", StreamGroup: "SHOP-GROUP:"}
	p.Settings().(*effects.Config).Kinds = map[string]*effects.Kind{"mail": k}
	r, err := pipeline.NewRegistry(pipeline.Env{}, shared, o, p)
	require.NoError(t, err)
	require.Equal(t, pipeline.Endpoint{Kind: "elastic-streams", Name: "SHOP-STREAM:<id>", Group: "SHOP-GROUP:<id>"}, r.Routes()[0].From.Describe())
}

const ledger = `
plugins:
  once: {ledger: {dsn: DSN}}
`

const invoices = ledger + `
  effects:
    kinds:
      invoice:
        repeat: by_key
        key: invoice.number
        group: invoice.customer
        not_before: due
        request:
          path: /v1/invoices?group={group}
          idempotency_header: Request-Id
          headers: {X-Shop: de}
          body: invoice
        answers: {receipt: invoice.id, code: error.code, message: error.text}
        api: {url: "API/billing"}
        effects: {topic: invoices, key_ttl: 23h, poll_interval: 10ms}
`

// An API that knows idempotency keys gets the same bytes with the same key until its answer is clear.
func TestAKindOfSettingsWithKeys(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		const path = "/billing/v1/invoices"
		api.next("POST "+path,
			reply{execute: true, drop: true},
			reply{execute: true, status: http.StatusBadGateway, body: "<html>"},
			reply{status: http.StatusTooManyRequests, body: `{"error":{"code":"slow_down"}}`})
		w := newWorld(t, dsn)
		w.start(t, invoices, dsn, api)
		const payload = `{"due": "2020-01-01T00:00:00Z", "invoice": {"customer": "acme", "number": 17, "cents": 1200}}`
		w.send(t, "invoices", payload, payload, strings.ReplaceAll(payload, " ", ""))
		s := w.settled(t, "invoice", payload)
		require.Equal(t, rules.Success, s.State, s)
		require.Equal(t, "71", s.Receipt)
		require.Equal(t, 1, api.executed("invoice:acme:17"))
		calls := api.requests(http.MethodPost, path)
		require.Len(t, calls, 4)
		for _, c := range calls {
			require.Equal(t, "invoice:acme:17", c.key)
			require.Equal(t, 1, strings.Count(`{"customer":"acme","number":17,"cents":1200}`, c.body), "the part of the record, without spaces: %s", c.body)
			require.Equal(t, "de", c.header.Get("X-Shop"))
			require.Equal(t, "application/json", c.header.Get("Content-Type"))
		}

		api.next("POST "+path, reply{status: http.StatusUnprocessableEntity, body: `{"error":{"code":"no_such_customer","text":"who?"}}`})
		const refused = `{"invoice":{"customer":"zeta","number":"1"}}`
		w.send(t, "invoices", refused)
		s = w.settled(t, "invoice", refused)
		require.Equal(t, rules.Failed, s.State)
		require.Equal(t, "422 Unprocessable Entity: no_such_customer who?", s.Error)
	})
}

// An effect is called for when its time has come.
func TestNotBefore(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, invoices, dsn, api)
	payload := `{"due":"` + time.Now().Add(24*time.Hour).Format(time.RFC3339) + `","invoice":{"customer":"acme","number":"18"}}`
	for _, accepted := range []once.Accepted{once.Fresh, once.Known} {
		asked, err := w.Once.Ask(t.Context(), "invoice", once.Ask{Payload: []byte(payload)})
		require.NoError(t, err)
		require.Equal(t, accepted, asked.Accepted)
	}
	s := w.state(t, "invoice", payload)
	require.Equal(t, rules.Pending, s.State)
	require.Greater(t, s.NextIn, 23*time.Hour)
	w.Turn(25 * time.Hour)
	require.Equal(t, rules.Success, w.settled(t, "invoice", payload).State)
}

// An API with a lookup gets a request again only when the lookup does not find the effect.
func TestAKindOfSettingsWithALookup(t *testing.T) {
	t.Parallel()
	const settings = ledger + `
  effects:
    kinds:
      box:
        repeat: by_lookup
        key: id
        group: shop
        request: {method: PUT, path: "/parcels/{group}/{id}"}
        lookup: {path: "/parcels/{group}/{id}", statuses: {404: not_done}}
        answers: {receipt: id, statuses: {201: done}}
        api: {url: "API"}
        effects: {topic: parcels, under_way: 30s, poll_interval: 10ms}
`
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, false)
		api.next("PUT /parcels/de/1", reply{execute: true, drop: true})
		api.next("PUT /parcels/de/2", reply{drop: true})
		w := newWorld(t, dsn)
		w.start(t, settings, dsn, api)
		const executed, lost = `{"shop":"de","id":"1"}`, `{"shop":"de","id":"2"}`
		w.send(t, "parcels", executed, lost)
		s := w.settled(t, "box", executed)
		require.Equal(t, rules.Success, s.State)
		require.Equal(t, "found", s.Receipt)
		require.Equal(t, 1, api.executed("/parcels/de/1"))
		require.Len(t, api.requests(http.MethodPut, "/parcels/de/1"), 1)
		require.Equal(t, rules.Success, w.settled(t, "box", lost).State)
		require.Equal(t, 1, api.executed("/parcels/de/2"))
		require.Len(t, api.requests(http.MethodPut, "/parcels/de/2"), 2)
		require.NotEmpty(t, api.requests(http.MethodGet, "/parcels/de/2"), "it was looked up before it was sent again")
	})
}

// Without keys and lookup nothing is sent again after an unclear answer, and the statuses of the settings
// say which answers are clear.
func TestAKindOfSettingsThatIsNeverRepeated(t *testing.T) {
	t.Parallel()
	const settings = ledger + `
  effects:
    kinds:
      mail:
        repeat: never
        key: id
        group: to
        request: {path: "/mails/{id}"}
        answers: {statuses: {2xx: done, 202: unknown, 4xx: failed, 503: retry}}
        api: {url: "API"}
        effects: {topic: mails, poll_interval: 10ms}
`
	for name, c := range map[string]struct {
		replies  []reply
		state    rules.State
		calls    int
		executed int
	}{
		"a success":                   {[]reply{{execute: true, status: http.StatusNoContent}}, rules.Success, 1, 1},
		"a status before its class":   {[]reply{{execute: true, status: http.StatusAccepted}}, rules.Unknown, 1, 1},
		"a refusal":                   {[]reply{{status: http.StatusBadRequest, body: "no such address"}}, rules.Failed, 1, 0},
		"asked for again":             {[]reply{{status: http.StatusServiceUnavailable}}, rules.Success, 2, 1},
		"too many, which is no 4xx":   {[]reply{{status: http.StatusTooManyRequests}}, rules.Success, 2, 1},
		"a credential, which is none": {[]reply{{status: http.StatusUnauthorized}}, rules.Success, 2, 1},
		"an error of the server":      {[]reply{{execute: true, status: http.StatusInternalServerError}}, rules.Unknown, 1, 1},
		"no answer":                   {[]reply{{execute: true, drop: true}}, rules.Unknown, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, api := sqldbtest.File(t), newFar(t, false)
			api.next("POST /mails/1", c.replies...)
			w := newWorld(t, dsn)
			w.start(t, settings, dsn, api)
			const payload = `{"id":1,"to":"ann"}`
			w.send(t, "mails", payload)
			s := w.settled(t, "mail", payload)
			require.Equal(t, c.state, s.State, s)
			require.Len(t, api.requests(http.MethodPost, "/mails/1"), c.calls)
			require.Equal(t, c.executed, api.executed("/mails/1"))
		})
	}
}

// A record that names no effect is a dead letter that says where it came from, and which path is wrong.
func TestRecordsThatNameNoEffect(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		api := newFar(t, true)
		w := newWorld(t, dsn)
		w.start(t, invoices, dsn, api)
		good := `{"invoice":{"customer":"acme","number":"1","cents":1}}`
		payloads := []string{
			`{`, `{"invoice":{"customer":"a\xff"}}`, `7`, `{"invoice":{"customer":"acme"}}`, `{"invoice":{"customer":"acme","number":{}}}`,
			`{"invoice":{"customer":"acme","number":17.5}}`, `{"invoice":{"customer":"acme","number":true}}`, `{"invoice":{"customer":"acme","number":null}}`,
			`{"invoice":{"customer":"acme","number":""}}`, `{"invoice":{"customer":"acme","number":"` + strings.Repeat("x", 101) + `"}}`,
			`{"invoice":{"customer":"a\u0007","number":[1]}}`, `{"due":"tomorrow","invoice":{"customer":"acme","number":"2"}}`,
			`{"invoice":{"customer":"acme","number":"1","cents":2}}`,
		}
		payloads[1] = strings.ReplaceAll(payloads[1], `\xff`, "\xff")
		want := []string{
			"it is not JSON: unexpected end of JSON input", "it is not UTF-8", "key: the record has no invoice.number", "key: the record has no invoice.number",
			"key: invoice.number is an object: expected a text or a whole number", "key: invoice.number is a number with a fraction or an exponent: expected a text or a whole number",
			"key: invoice.number is true: expected a text or a whole number", "key: invoice.number is null", "key: invoice.number is empty: expected 1 to 100 bytes",
			"key: invoice.number has 101 bytes: expected 1 to 100", "group: invoice.customer has a control character: expected printable text",
			"not_before: due is no time such as 2026-01-31T09:00:00Z", "accepted before with another request",
		}
		w.send(t, "invoices", good)
		require.Equal(t, rules.Success, w.settled(t, "invoice", good).State)
		w.send(t, "invoices", payloads...)
		dead, err := w.Topics.Published("invoices-dead").Wait(t.Context(), len(payloads))
		require.NoError(t, err)
		errs := map[string]string{}
		for _, m := range dead {
			errs[string(m.Payload)] = m.Metadata.Get(pipeline.MetaDeadError)
		}
		for i, payload := range payloads {
			require.Contains(t, errs[payload], want[i], payload)
			if i < len(payloads)-1 {
				require.Contains(t, errs[payload], "the record at invoices", payload)
			}
		}
		require.Len(t, api.requests(http.MethodPost, "/billing/v1/invoices"), 1)
	})
}

// Two kinds of one topic are two effects of each record.
func TestTwoKindsOfOneTopicReadItApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sqldbtest.File(t))
	kind := func(name, more string) string {
		return "      " + name + `: {repeat: never, key: id, group: to, request: {path: /x}, answers: {receipt: id}, api: {url: "http://127.0.0.1"}, effects: {topic: orders` + more + "}}\n"
	}
	code, printed := w.validate(t, "plugins:\n  effects:\n    kinds:\n"+kind("mail", "")+kind("invoice", ""))
	require.Zero(t, code, printed)
	code, printed = w.validate(t, "plugins:\n  effects:\n    kinds:\n"+kind("mail", ", group: a")+kind("invoice", ", group: a"))
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, printed, `mill.yaml:4: plugins.effects.kinds.mail.effects.group: must not be "a", which kind invoice has for the topic orders: each record would reach only one of them`)
}
