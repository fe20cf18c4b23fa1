package oncehttp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
)

func TestAStatedStatusIsTakenAtItsWord(t *testing.T) {
	t.Parallel()
	m := testMapping()
	m.Statuses = Statuses{"2xx": once.Done, "202": once.Unclear, "4xx": once.Rejected, "404": once.Unclear, "409": once.Done, "503": once.Retry, "502": once.Retry, "400": once.Retry}
	m.LookupStatuses = Statuses{"200": once.Done, "404": once.NotDone, "410": once.Unclear}
	seconds := http.Header{"Retry-After": {"7"}}
	for name, c := range map[string]struct {
		lookup  bool
		status  int
		header  http.Header
		body    string
		class   once.Class
		verdict verdict
		receipt string
		wait    time.Duration
	}{
		"a class":                            {status: 204, class: once.Done, verdict: healthy},
		"done, with a receipt":               {status: 201, body: `{"id":"t"}`, class: once.Done, verdict: healthy, receipt: "t"},
		"done, of another key":               {status: 201, body: `{"key":"K:1:3"}`, class: once.Unclear, verdict: healthy},
		"a status before its class":          {status: 202, body: `{"id":"t"}`, class: once.Unclear, verdict: failing},
		"a refusal without a code":           {status: 422, body: "<html>", class: once.Rejected, verdict: healthy},
		"done before":                        {status: 409, class: once.Done, verdict: healthy},
		"not found":                          {status: 404, body: `{"code":"customer_not_found"}`, class: once.Unclear, verdict: failing},
		"the credential is not the effect":   {status: 401, class: once.Misconfigured, verdict: misconfigured},
		"the permission is not the effect":   {status: 403, body: `{"code":"customer_blocked"}`, class: once.Misconfigured, verdict: misconfigured},
		"too many is not the effect":         {status: 429, header: seconds, class: once.Throttled, verdict: throttling, wait: 7 * time.Second},
		"too many without a time":            {status: 429, class: once.Throttled, verdict: throttling, wait: time.Second},
		"too early is not the effect":        {status: 425, class: once.Retry, verdict: failing},
		"asked for again":                    {status: 400, header: seconds, class: once.Retry, verdict: failing, wait: 7 * time.Second},
		"unavailable for a time":             {status: 503, header: seconds, class: once.Throttled, verdict: throttling, wait: 7 * time.Second},
		"unavailable":                        {status: 503, class: once.Retry, verdict: failing},
		"not stated":                         {status: 500, class: once.Unrecognized, verdict: failing},
		"found":                              {lookup: true, status: 200, class: once.Done, verdict: healthy},
		"not found by a lookup":              {lookup: true, status: 404, class: once.NotDone, verdict: healthy},
		"gone":                               {lookup: true, status: 410, class: once.Unclear, verdict: failing},
		"those of a request are not for it":  {lookup: true, status: 409, class: once.Unrecognized, verdict: neutral},
		"a lookup's 201 without a statement": {lookup: true, status: 201, body: `{"id":"t"}`, class: once.Done, verdict: healthy, receipt: "t"},
	} {
		if c.header == nil {
			c.header = http.Header{}
		}
		config := DefaultConfig()
		a, v := classify(&m, &request{lookup: c.lookup, key: "K:1:2"}, &reply{status: c.status, header: c.header, body: []byte(c.body)}, time.Now(), &config)
		require.Equal(t, c.class, a.Class, name)
		require.Equal(t, c.verdict, v, name)
		require.Equal(t, c.receipt, a.Receipt, name)
		require.Equal(t, c.wait, a.RetryAfter, name)
		require.Equal(t, c.status, a.Status, name)
	}
}

func TestStatusesThatCanNotBeStated(t *testing.T) {
	t.Parallel()
	m := Mapping{
		Name: "billing", Method: "GET", Headers: map[string]setting.Secret{"a b": setting.NewSecret("x"), "Idempotency-Key": setting.NewSecret("x"), "X-Lines": setting.NewSecret("a\nb")},
		Statuses:       Statuses{"6xx": once.Done, "4XX": once.Done, "40": once.Done, "401": once.Rejected, "500": once.Done, "3xx": once.Done, "422": once.NotDone},
		LookupStatuses: Statuses{"404": once.Rejected},
	}
	err := m.Validate()
	for _, want := range []string{
		`Method: must be POST, PUT or PATCH, got "GET"`,
		`Headers: must have names of headers, got "a b"`,
		`Headers: must not have Idempotency-Key, which has another value`,
		`Headers: X-Lines must have one line`,
		`Statuses: must be a status such as 404 or a class such as 4xx, from 2xx to 5xx, got "6xx"`,
		`got "4XX"`, `got "40"`,
		"Statuses: a 401 is about the credential, so it must not fail an effect",
		"Statuses: 500 can't mean that an effect was done", "Statuses: 3xx can't mean",
		"Statuses: a status can't be not_done, only one of [done rejected retry unclear]",
		"LookupStatuses: a status can't be rejected, only one of [done not_done unclear]",
		"Receipt: must be set, or Key, or a 2xx of Statuses must be done",
	} {
		require.ErrorContains(t, err, want)
	}
	m = Mapping{Name: "billing", Statuses: Statuses{"2xx": once.Done}}
	require.NoError(t, m.Validate())
}

// Method and headers reach the API, and a header that it repeats is shown to nobody.
func TestMethodAndHeaders(t *testing.T) {
	t.Parallel()
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, `{"code":"refused","message":"`+r.Method+" "+r.Header.Get("X-Shop")+" "+r.Header.Get("X-Api-Key")+" "+r.Header.Get("Content-Type")+`"}`)
	}))
	t.Cleanup(far.Close)
	config := DefaultConfig()
	config.URL = far.URL
	c := New(&config, Mapping{Name: "billing", Method: http.MethodPut, Receipt: []string{"id"}, Headers: map[string]setting.Secret{"x-shop": setting.NewSecret("de"), "X-Api-Key": setting.NewSecret("very secret")}})
	require.NoError(t, c.Open(nil))
	t.Cleanup(func() { _ = c.Close() })
	a := Post(context.Background(), c, "/", once.Attempt[string]{Idempotency: "k", Request: []byte(`{}`)})
	require.Equal(t, once.Rejected, a.Class)
	require.Equal(t, "422 Unprocessable Entity: refused PUT de [redacted] application/json", a.Text)
}

func TestCheckPath(t *testing.T) {
	t.Parallel()
	require.NoError(t, CheckPath("/v1/invoices/{group}/{id}?key={key}"))
	for _, path := range []string{"", "v1", "//v1", "/v1#a", "/v1 x", "/v1/{number}", "/%zz"} {
		require.Error(t, CheckPath(path), path)
	}
}
