package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// get returns the status and the body of an answer.
func (p *process) get(url string, headers ...string) (int, string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, url, nil)
	require.NoError(p.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := p.client.Do(req)
	require.NoError(p.t, err)
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		first, err := io.ReadAll(io.LimitReader(resp.Body, 8))
		require.NoError(p.t, err)
		return resp.StatusCode, string(first)
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return resp.StatusCode, string(body)
}

func (p *process) token(expires time.Duration, jobs ...string) string {
	p.t.Helper()
	raw, err := p.tokens.Sign(token.Claims{Audience: Audience, Expires: time.Now().Add(expires), Job: jobs})
	require.NoError(p.t, err)
	return raw
}

func TestATokenOpensItsJobs(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.LoopbackWithoutToken = false })
	r.steps("job", 1, 1)
	r.steps("second", 1, 1)
	state, events := p.path(r.domain, "job"), p.path(r.domain, "job")+"/events"
	mine := p.token(time.Minute, r.domain+"/job")
	other, err := p.tokens.Sign(token.Claims{Audience: "another", Expires: time.Now().Add(time.Minute), Job: []string{r.domain + "/job"}})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		url, token string
		status     int
		text       string
	}{
		"its own":           {events, mine, 200, "retry: "},
		"state":             {state, mine, 200, `"seq":1`},
		"none":              {events, "", 401, "no_token"},
		"none for state":    {state, "", 401, "no_token"},
		"forged":            {events, mine[:len(mine)-9] + "AAAAAAAAA", 401, "bad_token"},
		"another audience":  {events, other, 403, "other_audience"},
		"expired":           {events, p.token(-time.Minute, r.domain+"/job"), 401, "expired"},
		"another job":       {p.path(r.domain, "second"), mine, 403, "other_job"},
		"one of two jobs":   {events + "?job=" + r.domain + "/second", mine, 403, "other_job"},
		"another domain":    {events, p.token(time.Minute, "chat/job"), 403, "other_job"},
		"both jobs":         {events + "?job=" + r.domain + "/second", p.token(time.Minute, r.domain+"/second", r.domain+"/job"), 200, "retry: "},
		"an unknown domain": {p.path("nowhere", "job"), mine, 404, "unknown_domain"},
		"a bad job":         {p.path(r.domain, "a}b"), mine, 400, "bad_job"},
		"a long job":        {p.path(r.domain, strings.Repeat("x", 129)), mine, 400, "bad_job"},
		"an unknown job":    {p.path(r.domain, "new"), p.token(time.Minute, r.domain+"/new"), 404, "unknown"},
	} {
		headers := []string{"Accept", "text/event-stream"}
		if c.token != "" {
			headers = append(headers, "Authorization", "Bearer "+c.token)
		}
		status, text := p.get(c.url, headers...)
		require.Equal(t, c.status, status, "%s: %s", name, text)
		require.Contains(t, text, c.text, name)
	}
	status, _ := p.get(events + "?token=" + mine)
	require.Equal(t, 200, status, "an EventSource sends no headers")
}

// Viewers behind one address share its limit only if their tokens name no user.
func TestStreamsAreCountedByTheUserOfTheToken(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	r.web = func(c *web.Config) { c.MaxStreamsPerUser = 2 }
	p := r.start("", nil)
	r.steps("job", 1, 1)
	openFor := func(user string, lasts time.Duration) string {
		raw, err := p.tokens.Sign(token.Claims{Audience: Audience, Subject: user, Expires: time.Now().Add(lasts), Job: []string{r.domain + "/job"}})
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.path(r.domain, "job")+"/events?token="+raw, http.NoBody)
		require.NoError(t, err)
		resp, err := p.client.Do(req)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.Status
	}
	open := func(user string) string { return openFor(user, time.Minute) }
	for i := range 11 {
		require.Equal(t, "200 OK", open(fmt.Sprint("viewer", i)))
	}
	require.Equal(t, "200 OK", open("viewer0"))
	require.Equal(t, "429 Too Many Requests", open("viewer0"))
	require.Equal(t, "401 Unauthorized", openFor("viewer0", -time.Hour), "an expired token names nobody")
	require.Equal(t, "200 OK", open(""))
	require.Equal(t, "200 OK", open(""))
	require.Equal(t, "429 Too Many Requests", open(""))
	verified := `
# HELP millrace_token_verifications_total Tokens verified, by result: valid, expired, forged, audience.
# TYPE millrace_token_verifications_total counter
millrace_token_verifications_total{result="audience"} 0
millrace_token_verifications_total{result="expired"} 1
millrace_token_verifications_total{result="forged"} 0
millrace_token_verifications_total{result="valid"} 16
`
	require.NoError(t, testutil.GatherAndCompare(p.gathered, strings.NewReader(verified), "millrace_token_verifications_total"), "each token once")
}

func TestAStreamEndsWithItsToken(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	// A machine that stands still may come with a token that is over. It tries with a longer one.
	for left := 1100 * time.Millisecond; ; left *= 2 {
		w := p.watch(r.domain, "job", "?token="+p.token(left-token.Leeway, r.domain+"/job"))
		<-w.done // a reconnect is refused
		refusal, ok := errors.AsType[*ssetest.StatusError](w.err)
		require.True(t, ok, "%v", w.err)
		require.Equal(t, http.StatusUnauthorized, refusal.Code)
		if len(w.received()) == 0 && left < token.Leeway/2 {
			continue
		}
		require.Equal(t, []string{"closed expired"}, w.received())
		break
	}

	raw := p.token(0, r.domain+"/job")
	claims, err := p.tokens.Verify(Audience, raw)
	require.NoError(t, err)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?token="+raw, nil)
	end, refusal := p.permit(req, []jobKey{{r.domain, "job"}}, time.Now().Add(time.Hour))
	require.Nil(t, refusal)
	require.Equal(t, claims.Expires.Add(token.Leeway), end, "a reconnect is refused from then on")
}

func TestAStreamEndsAfterMaxWatch(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.MaxWatch = 100 * time.Millisecond })
	w := p.watch(r.domain, "job", "").wait("closed expired")
	r.add(r.event("job", 1, "done"))
	require.Contains(t, w.ends(), "1", "the client has reconnected")
}

func TestLoopbackWithoutToken(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	host := "localhost:8080"
	local := func(peer, header string) bool {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.RemoteAddr, req.Host = peer, host
		if header != "" {
			req.Header.Set(header, "192.0.2.1")
		}
		return p.local(req)
	}
	require.True(t, local("127.0.0.1:1", ""))
	require.False(t, local("192.0.2.1:1", ""))
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Real-IP"} {
		require.False(t, local("127.0.0.1:1", header), header)
	}
	host = "evil.example:8080"
	require.False(t, local("127.0.0.1:1", ""), "the name of a foreign page leads to this machine")
	host = "localhost:8080"
	p.stop()
	require.False(t, local("127.0.0.1:1", ""), "no listener on a loopback address")
}

func TestAReconnectAfterTheEndIsAnsweredWith204(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.add(r.event("job", 1, "step"), r.event("job", 2, "done"))
	r.steps("open", 1, 1)
	events := p.path(r.domain, "job") + "/events"
	for query, want := range map[string]int{
		"": 200, "?last_event_id=1": 200, "?last_event_id=2": 204, "?last_event_id=3": 200, "?from=now": 200, "?from=now&last_event_id=2": 204,
		"?job=" + r.domain + "/open&last_event_id=2": 200,
	} {
		status, _ := p.get(events + query)
		require.Equal(t, want, status, query)
	}
	status, _ := p.get(events+"?last_event_id=1", "Last-Event-ID", "2")
	require.Equal(t, 204, status, "the header is newer than the query")
}

func TestWithoutHistory(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 7)
	w := newWatch(t, p, p.path(r.domain, "job")+"/events?from=now")
	w.at = 7
	w.run().wait("state 7")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	w.cancel()
	<-w.done
	r.steps("job", 8, 8) // while it is not connected
	w.done = make(chan struct{})
	w.run().wait("8")
	r.add(r.event("job", 9, "done"))
	require.Equal(t, []string{"state 7", "state 8", "8", "9", "closed done"}, w.ends())
	w = p.watch(r.domain, "job", "?from=now")
	require.Equal(t, []string{"state 9", "closed done"}, w.ends())
}

// The ids of a stream with several jobs have the cursors of all.
func TestAStreamOfSeveralJobs(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	jobs := []string{"a", "b", "c"}
	for _, id := range jobs {
		r.steps(id, 1, 3)
	}
	url := p.path(r.domain, "a") + "/events?job=" + r.domain + "/b&job=" + r.domain + "/c&job=" + r.domain + "/a"
	got := map[string][]int64{}
	count, limit, closed := 0, 4, ""
	client := ssetest.Client{
		URL: url, HTTP: p.client, Retry: func(time.Duration) time.Duration { return time.Millisecond },
		Event: func(e ssetest.Event) error {
			switch e.Name {
			case "event":
				one, err := event.Decode([]byte(e.Data))
				require.NoError(t, err)
				got[one.JobID] = append(got[one.JobID], one.Seq)
				if count++; count == limit {
					return io.EOF // the connection breaks here
				}
			case "closed":
				closed = e.Data
				return errClosed
			}
			return nil
		},
	}
	require.ErrorIs(t, client.Run(t.Context()), io.EOF)
	require.LessOrEqual(t, len(client.LastEventID), 900/maxJobs*len(jobs))
	limit = -1
	for i, id := range jobs {
		r.add(r.event(id, 4, "step"), r.event(id, 5, []string{"done", "done", "error"}[i]))
	}
	require.ErrorIs(t, client.Run(t.Context()), errClosed)
	for _, id := range jobs {
		require.Equal(t, []int64{1, 2, 3, 4, 5}, got[id], id)
	}
	require.Contains(t, closed, "reason")
	require.NoError(t, client.Run(t.Context()), "204")

	many := url
	for range maxJobs {
		many += "&job=" + r.domain + "/" + strings.Repeat("x", 1+strings.Count(many, "&"))
	}
	status, text := p.get(many)
	require.Equal(t, 400, status)
	require.Contains(t, text, "too_many_jobs")
}

func TestWithoutRedisAStreamIsBusy(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	proxy := redistest.NewProxy(t, r.addr)
	p := r.start(proxy.Addr(), nil)
	r.steps("job", 1, 1)
	proxy.SetDown(true)
	w := p.watch(r.domain, "job", "").wait("busy unavailable")
	status, text := p.get(p.path(r.domain, "job"))
	require.Equal(t, 503, status)
	require.Contains(t, text, "unavailable")
	proxy.SetDown(false)
	w.wait("1")
}

func TestADrainClosesStreams(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	w := p.watch(r.domain, "job", "")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	p.stop()
	w.wait("closed draining")
}

// The server refuses HEAD, as for each stream (plugins/web).
func TestHeadOpensNoStream(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, p.path(r.domain, "job")+"/events", nil)
	require.NoError(t, err)
	resp, err := p.client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	require.Zero(t, p.reads(readConnect), "no log is read for it")
}
