package simulator

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// described returns a running far side that flags describe, and what calls it: a status, an answer and its headers.
func described(t *testing.T, g generic, f Faults) (s *Server, do func(method, path, key, body string) (int, string, http.Header)) {
	t.Helper()
	if g.header == "" {
		g.header = "Idempotency-Key"
	}
	if g.receipt == "" {
		g.receipt = "id"
	}
	api, err := g.api()
	require.NoError(t, err)
	s, err = New(api, Config{Faults: f})
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Stop(t.Context())) })
	return s, func(method, path, key, body string) (int, string, http.Header) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Header.Set(g.header, key)
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String(), w.Header()
	}
}

func TestAFarSideThatFlagsDescribe(t *testing.T) {
	t.Parallel()
	s, do := described(t, generic{posts: []string{"/v1/mails", "/v1/parcels/{key}/labels"}, lookup: "/v1/found/{key}", header: "X-Key", receipt: "number", sum: "order.cents"}, Faults{})
	const body = `{"order":{"cents":12}}`
	status, first, _ := do(http.MethodPost, "/v1/mails", "mail:a:1", body)
	require.Equal(t, 200, status)
	require.Regexp(t, `^{"number":"[0-9a-f]+-1"}$`, first)
	_, again, h := do(http.MethodPost, "/v1/mails", "mail:a:1", body)
	require.Equal(t, first, again)
	require.Equal(t, "true", h.Get("Idempotent-Replayed"))
	_, found, _ := do(http.MethodGet, "/v1/found/mail%3Aa%3A1", "", "")
	require.Equal(t, first, found)
	status, _, _ = do(http.MethodPut, "/v1/parcels/a%2Fb/labels", "", body)
	require.Equal(t, 200, status)
	status, _, _ = do(http.MethodGet, "/v1/found/a%2Fb", "", "")
	require.Equal(t, 200, status)
	for _, c := range []struct {
		method, path, key, body string
		status                  int
		want                    string
	}{
		{http.MethodGet, "/v1/found/none", "", "", 404, "not_found"},
		{http.MethodGet, "/v1/found/a/b", "", "", 404, "no_such_operation"},
		{http.MethodDelete, "/v1/mails", "k", body, 404, "no_such_operation"},
		{http.MethodPost, "/v1/mails/1", "k", body, 404, "no_such_operation"},
		{http.MethodPost, "/v1/mails", "", body, 400, "bad_idempotency_key"},
		{http.MethodPost, "/v1/mails", strings.Repeat("k", 256), body, 400, "bad_idempotency_key"},
		{http.MethodPost, "/v1/mails", "k", `{"order":{"cents":1.5}}`, 400, "order.cents"},
		{http.MethodPost, "/v1/mails", "k", `{"order":7}`, 400, "order.cents"},
		{http.MethodPost, "/v1/mails", "k", `hello`, 400, "no JSON"},
	} {
		status, answer, _ := do(c.method, c.path, c.key, c.body)
		require.Equal(t, c.status, status, c)
		require.Contains(t, answer, c.want, c)
	}
	require.Equal(t, 2, s.Summary().Executed)
	require.EqualValues(t, 24, s.Summary().Sum)
}

func TestAFarSideThatKnowsNoKeys(t *testing.T) {
	t.Parallel()
	s, do := described(t, generic{forgets: true, lookup: "/found/{key}"}, Faults{})
	_, first, _ := do(http.MethodPost, "/any/path", "a", "1")
	_, second, h := do(http.MethodPost, "/any/path", "a", "2")
	require.NotEqual(t, first, second)
	require.Empty(t, h.Get("Idempotent-Replayed"))
	_, found, _ := do(http.MethodGet, "/found/a", "", "")
	require.Equal(t, second, found)
	require.Equal(t, 1, s.Summary().Doubled)
	_, book, _ := do(http.MethodGet, "/_sim/journal?format=book", "", "")
	require.Regexp(t, `^key,receipt,times\na,[0-9a-f]+-2,2\n$`, book)

	api, err := (&generic{forgets: true, header: "K", receipt: "id"}).api()
	require.NoError(t, err)
	_, err = New(api, Config{KeyTTL: time.Hour})
	require.ErrorContains(t, err, "knows no keys has no key ttl")
}

func TestALimitPerSecond(t *testing.T) {
	t.Parallel()
	s, do := described(t, generic{lookup: "/found/{key}"}, Faults{PerSecond: 2})
	now := time.Now()
	require.Equal(t, []bool{true, true, false}, []bool{s.pace.admits(2, now), s.pace.admits(2, now), s.pace.admits(2, now.Add(time.Second-1))})
	require.True(t, s.pace.admits(2, now.Add(time.Second)))
	require.True(t, s.pace.admits(2, now.Add(time.Second)))
	s.pace.begin = now.Add(time.Hour) // a second that does not end meanwhile
	for _, path := range []string{"/", "/found/a"} {
		method := http.MethodPost
		if path != "/" {
			method = http.MethodGet
		}
		status, answer, h := do(method, path, "a", "{}")
		require.Equal(t, 429, status)
		require.Equal(t, "1", h.Get("Retry-After"))
		require.Contains(t, answer, "throttled")
	}
	require.Equal(t, uint64(2), s.Summary().Requests["throttled"])
	require.Zero(t, s.Summary().Executed)
	require.ErrorContains(t, Faults{PerSecond: -1}.Validate(), "per_second")
}

func TestFlagsThatDescribeNothing(t *testing.T) {
	t.Parallel()
	for _, c := range [][]string{
		{"--post", "v1", "--post: a path begins with /"},
		{"--post", "/a/{key}/{key}", "at most one {key}"},
		{"--post", "/a*b", "or a * at its end"},
		{"--lookup", "/a", `--lookup: "/a" has no {key}`},
		{"--lookup", "/{key", "--lookup: a path"},
		{"--key-header", "", "must not be empty"},
		{"--receipt-field", "", "must not be empty"},
	} {
		cmd := OnceCommand()
		cmd.SetArgs(c[:2])
		cmd.SetOut(new(strings.Builder))
		cmd.SetErr(new(strings.Builder))
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), c[2], c)
	}
}
