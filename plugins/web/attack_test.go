package web_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/web"
)

func TestAPanicEndsOneRequest(t *testing.T) {
	t.Parallel()
	r := start(t, nil, func(s *site) {
		s.web.Handle("GET /early", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("nil client") }))
		s.web.Handle("GET /late", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000)) // more than the server's buffer
			panic("nil client")
		}))
		s.web.Handle("GET /aborted", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		s.web.Handle("GET /x", text("x"))
		s.web.Handle("GET /events", s.events(), web.Stream())
	})
	stream := r.open("GET", "/events")
	defer stream.Body.Close()
	a := r.send("GET", "/early?token=secret-token")
	require.Equal(t, http.StatusInternalServerError, a.status)
	require.Equal(t, "internal", a.word(t))
	require.NotContains(t, a.body, "nil client")
	late := r.open("GET", "/late")
	_, err := io.ReadAll(late.Body)
	require.Error(t, err, "the client sees that the answer is not complete")
	late.Body.Close()
	_, err = r.client.Get("http://" + r.web.Addr() + "/aborted") //nolint:bodyclose // there is none
	require.Error(t, err)
	require.Equal(t, "x", r.send("GET", "/x").body)
	requireLine(t, bufio.NewReader(stream.Body), "event: hello")

	require.Contains(t, r.log.String(), `level=ERROR msg="http handler panicked"`)
	require.Contains(t, r.log.String(), "attack_test.go")
	require.NotContains(t, r.log.String(), "secret-token")
	require.Equal(t, 2.0, r.metric("millrace_web_panics_total", nil))
	require.Equal(t, 1.0, r.metric("millrace_web_requests_total", map[string]string{"pattern": "GET /early", "status": "5xx"}))
}

func TestTheLogHasNoTokens(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *web.Config) { c.TrustedProxies, c.Auth.Header = []string{"127.0.0.1"}, "X-User" }, func(s *site) {
		s.web.Handle("GET /x/{id}", text("x"), web.Users())
	})
	for _, path := range []string{"/x/1", "/x/../x/1", "/absent", "/x/1;a"} {
		r.send("GET", path+"?token=secret-token;semicolon", "X-User", "secret-user", "Authorization", "Bearer secret-token", "Cookie", "token=secret-token",
			"Referer", "https://a/?token=secret-token")
		r.send("OPTIONS", path+"?token=secret-token", "Origin", "https://evil.example", "Access-Control-Request-Method", "GET")
	}
	require.NotContains(t, r.log.String(), "secret")
	require.Contains(t, r.log.String(), "method=GET path=/x/1 status=200 ")
	require.Contains(t, r.log.String(), " user=")
}

func TestAUserHeaderNeedsATrustedProxy(t *testing.T) {
	t.Parallel()
	who := func(want, trusted string, headers ...string) {
		r := start(t, func(c *web.Config) { c.TrustedProxies, c.Auth.Header = []string{trusted}, "X-User" }, func(s *site) {
			s.web.Handle("GET /users", user(), web.Users())
			s.web.Handle("GET /all", user())
		})
		require.Equal(t, want, r.send("GET", "/all", headers...).body)
		a := r.send("GET", "/users", headers...)
		if want != "nobody" {
			require.Equal(t, want, a.body)
			return
		}
		require.Equal(t, http.StatusUnauthorized, a.status)
		require.Equal(t, "no_user", a.word(t))
	}
	who("u1", "127.0.0.0/8", "X-User", "u1")
	who("nobody", "10.0.0.0/8", "X-User", "u1")
	who("nobody", "10.0.0.0/8", "X-User", "u1", "X-Forwarded-For", "10.1.1.1")
	who("nobody", "127.0.0.0/8")
	who("nobody", "127.0.0.0/8", "X-User", "")
	who("nobody", "127.0.0.0/8", "X-User", "victim", "X-User", "u1") // the proxy has added its own
}

// A user whose id is not valid learns that, because another sign-in gives the same id.
func TestUserIDsThatAreNotValid(t *testing.T) {
	t.Parallel()
	id := newIdentity(t, "a")
	r := start(t, func(c *web.Config) {
		c.TrustedProxies, c.Auth.Header = []string{"127.0.0.1"}, "X-User"
		c.Auth.JWKSFile, c.Auth.Issuer, c.Auth.Audience = id.file("a"), "https://id.example", "site"
	}, func(s *site) {
		s.web.Handle("GET /users", user(), web.Users())
		s.web.Handle("GET /all", user())
	})
	as := func(path, user string, header bool) reply {
		if header {
			return r.send("GET", path, "X-User", user)
		}
		return r.send("GET", path, "Authorization", "Bearer "+id.token("a", func(c *jwt.Claims) { c.Subject = user }))
	}
	for _, header := range []bool{true, false} {
		good := strings.Repeat("é", 128)
		require.Equal(t, good, as("/users", good, header).body)
		for user, problem := range map[string]string{
			good + "é":                 "has 129 characters",
			strings.Repeat("x", 3<<10): "has 3072 characters",
			"u\u200b1":                 "has a character that is not printable",
		} {
			a := as("/users", user, header)
			require.Equal(t, http.StatusBadRequest, a.status)
			require.Equal(t, "bad_user", a.word(t))
			require.Contains(t, a.body, "the user id of the sign-in "+problem+"; a user id has 1 to 128 printable characters")
			require.Equal(t, "nobody", as("/all", user, header).body)
		}
	}
	require.Equal(t, http.StatusBadRequest, r.send("GET", "/users", "X-User", "u\xff").status)
	require.Equal(t, 7.0, r.metric("millrace_web_refused_total", map[string]string{"reason": "bad_user"}))
	require.Equal(t, 0.0, r.metric("millrace_web_refused_total", map[string]string{"reason": "no_user"}))
}

// HEAD has no effect: programs that check links and make previews send it.
func TestHeadHasNoEffect(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	counted := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			h.ServeHTTP(w, r)
		})
	}
	r := start(t, nil, func(s *site) {
		s.web.Handle("GET /x", text("x"))
		s.web.Handle("GET /changes", counted(text("x")), web.NoLinks())
		s.web.Handle("GET /events", counted(s.events()), web.Stream())
	})
	a := r.send("HEAD", "/x")
	require.Equal(t, http.StatusOK, a.status)
	for _, path := range []string{"/changes", "/events"} {
		a := r.send("HEAD", path)
		require.Equal(t, http.StatusMethodNotAllowed, a.status)
		require.Equal(t, "GET", a.header.Get("Allow"))
		require.Empty(t, a.body)
	}
	require.Zero(t, calls.Load())
	require.Equal(t, "x", r.send("GET", "/changes").body)
	require.EqualValues(t, 1, calls.Load())
}

// The limit per address shows which address the server has found.
func TestForwardedAddresses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trusted       []string
		first, second string // X-Forwarded-For of two requests
		same          bool   // they are of one visitor
	}{
		"two clients of a proxy":                     {[]string{"127.0.0.1"}, "192.0.2.1", "192.0.2.2", false},
		"one client of a proxy":                      {[]string{"127.0.0.1"}, "192.0.2.1", "192.0.2.1", true},
		"no trusted proxy":                           {[]string{"10.0.0.0/8"}, "192.0.2.1", "192.0.2.2", true},
		"a client that writes addresses":             {[]string{"127.0.0.1"}, "198.51.100.1, 192.0.2.1", "198.51.100.2, 192.0.2.1", true},
		"a client that writes the proxy's":           {[]string{"127.0.0.1"}, "127.0.0.1, 192.0.2.1", "192.0.2.1", true},
		"two proxies":                                {[]string{"127.0.0.1", "10.0.0.0/8"}, "192.0.2.1, 10.0.0.1", "192.0.2.2, 10.0.0.1", false},
		"no address":                                 {[]string{"127.0.0.1"}, "unknown", "", true},
		"an address and no address":                  {[]string{"127.0.0.1"}, "evil, 192.0.2.1", "192.0.2.1", true},
		"two addresses in one network of IPv6":       {[]string{"127.0.0.1"}, "2001:db8::1", "2001:db8::2", true},
		"two networks of IPv6":                       {[]string{"127.0.0.1"}, "2001:db8::1", "2001:db8:0:1::1", false},
		"ports":                                      {[]string{"127.0.0.1"}, "192.0.2.1:4711", "192.0.2.2:4711", false},
		"one client on two ports":                    {[]string{"127.0.0.1"}, "192.0.2.1:4711", "192.0.2.1:4712", true},
		"IPv6 with ports":                            {[]string{"127.0.0.1"}, "[2001:db8::1]:4711", "[2001:db8:0:1::1]:4711", false},
		"IPv6 in brackets":                           {[]string{"127.0.0.1"}, "[2001:db8::1]", "[2001:db8:0:1::1]", false},
		"quotes":                                     {[]string{"127.0.0.1"}, `"192.0.2.1"`, `"192.0.2.2"`, false},
		"quotes and ports":                           {[]string{"127.0.0.1"}, `"[2001:db8::1]:4711"`, `"[2001:db8:0:1::1]:4711"`, false},
		"two proxies with ports":                     {[]string{"127.0.0.1", "10.0.0.0/8"}, "192.0.2.1:1, 10.0.0.1:2", "192.0.2.2:1, 10.0.0.1:2", false},
		"an IPv4 address that is written as of IPv6": {[]string{"127.0.0.1"}, "192.0.2.1", "::ffff:192.0.2.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, func(settings *web.Config) { settings.TrustedProxies, settings.MaxStreamsPerUser = c.trusted, 1 }, func(s *site) {
				s.web.Handle("GET /events", s.events(), web.Stream())
			})
			open := r.open("GET", "/events", "X-Forwarded-For", c.first)
			defer open.Body.Close()
			requireLine(t, bufio.NewReader(open.Body), "event: hello")
			second := r.open("GET", "/events", "X-Forwarded-For", c.second)
			defer second.Body.Close()
			require.Equal(t, c.same, second.StatusCode == http.StatusTooManyRequests)
		})
	}
}

// An operator sees that a proxy writes no addresses.
func TestAProxyThatWritesNoAddress(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *web.Config) { c.TrustedProxies = []string{"127.0.0.1"} }, func(s *site) { s.web.Handle("GET /x", text("x")) })
	require.Equal(t, "x", r.send("GET", "/x").body)
	require.Equal(t, "x", r.send("GET", "/x", "X-Forwarded-For", "192.0.2.1:4711").body)
	require.NotContains(t, r.log.String(), "not understood")
	for range 3 {
		require.Equal(t, "x", r.send("GET", "/x", "X-Forwarded-For", "192.0.2.1, _hidden"+strings.Repeat("x", 1000)).body)
	}
	require.Equal(t, 1, strings.Count(r.log.String(), "not understood"), "one line in a minute")
	require.Contains(t, r.log.String(), `level=WARN msg="X-Forwarded-For of a trusted proxy not understood" plugin=web proxy=127.0.0.1 value=" _hiddenxxx`)
	require.NotContains(t, r.log.String(), strings.Repeat("x", 100))
}

func TestPagesOfForeignOrigins(t *testing.T) {
	t.Parallel()
	const friend, evil = "https://shop.example", "https://evil.example"
	r := start(t, func(c *web.Config) { c.AllowedOrigins = []string{friend} }, func(s *site) {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			s.web.Handle(method+" /own", text("secret"))
			s.web.Handle(method+" /open", text("secret"), web.AllowOrigins())
		}
		s.web.Handle("GET /changes", text("secret"), web.NoLinks())
		s.web.Handle("GET /events", s.events(), web.Stream())
		s.web.Handle("GET /open-events", s.events(), web.Stream(), web.AllowOrigins())
	})
	own := "http://" + r.web.Addr()
	for _, c := range []struct {
		request string
		headers []string
		status  int
		allowed string // Access-Control-Allow-Origin
	}{
		{"GET /own", nil, 200, ""}, // no browser
		{"POST /own", []string{"Origin", own}, 200, ""},
		{"POST /own", []string{"Origin", "https://public.example", "Sec-Fetch-Site", "same-origin"}, 200, ""}, // a proxy has changed the host
		{"GET /own", []string{"Sec-Fetch-Site", "none"}, 200, ""},                                             // typed by a user
		{"GET /own", []string{"Origin", evil}, 403, ""},
		{"GET /own", []string{"Origin", friend, "Sec-Fetch-Site", "cross-site"}, 403, ""},
		{"GET /own", []string{"Origin", "null"}, 403, ""},
		{"GET /own", []string{"Origin", own + ".evil.example"}, 403, ""},
		{"GET /own", []string{"Sec-Fetch-Site", "cross-site"}, 403, ""}, // an image
		{"GET /own", []string{"Sec-Fetch-Site", "same-site"}, 403, ""},
		{"POST /own", []string{"Sec-Fetch-Site", "cross-site"}, 403, ""},
		{"GET /own", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200, ""}, // a link
		{"GET /own", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403, ""},
		{"POST /own", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403, ""}, // a form
		{"GET /changes", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403, ""},
		{"GET /changes", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200, ""},
		{"GET /changes", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200, ""},
		{"GET /open", []string{"Origin", friend, "Sec-Fetch-Site", "cross-site"}, 200, friend},
		{"POST /open", []string{"Origin", friend}, 200, friend},
		{"DELETE /open", []string{"Origin", friend}, 200, friend},
		{"GET /open", []string{"Origin", evil, "Sec-Fetch-Site", "cross-site"}, 403, ""},
		{"GET /open", []string{"Origin", strings.ToUpper(friend)}, 403, ""},
		{"GET /open", []string{"Sec-Fetch-Site", "cross-site"}, 403, ""},
		{"GET /events", []string{"Origin", evil}, 403, ""},
		{"GET /events", []string{"Origin", evil, "Accept", "text/event-stream"}, 403, ""},
		{"GET /events", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 403, ""},
		{"GET /open-events", []string{"Origin", evil}, 403, ""},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		a := r.send(method, path, c.headers...)
		require.Equal(t, c.status, a.status, "%s %v", c.request, c.headers)
		require.Equal(t, c.allowed, a.header.Get("Access-Control-Allow-Origin"), "%s %v", c.request, c.headers)
		require.Empty(t, a.header.Get("Access-Control-Allow-Credentials"))
		if c.status == http.StatusForbidden {
			require.Equal(t, "foreign_origin", a.word(t))
		}
	}
	stream := r.open("GET", "/open-events", "Origin", friend)
	defer stream.Body.Close()
	require.Equal(t, friend, stream.Header.Get("Access-Control-Allow-Origin"))
	requireLine(t, bufio.NewReader(stream.Body), "event: hello")

	question := func(path, origin, method string) reply {
		return r.send("OPTIONS", path, "Origin", origin, "Access-Control-Request-Method", method, "Sec-Fetch-Site", "cross-site")
	}
	a := question("/open", friend, "DELETE")
	require.Equal(t, http.StatusNoContent, a.status)
	require.Equal(t, friend, a.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "DELETE", a.header.Get("Access-Control-Allow-Methods"))
	require.Contains(t, a.header.Get("Access-Control-Allow-Headers"), "Authorization")
	require.Contains(t, a.header.Values("Vary"), "Origin")
	for _, refused := range []reply{
		question("/open", evil, "GET"), question("/own", friend, "GET"), question("/open", friend, "PUT"), question("/absent", friend, "GET"),
	} {
		require.Equal(t, http.StatusForbidden, refused.status)
		require.Empty(t, refused.header.Get("Access-Control-Allow-Origin"))
	}
}

// dial opens a connection and sends text.
func dial(t testing.TB, r *rig, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.web.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	return c
}

func TestSlowClients(t *testing.T) {
	t.Parallel()
	writing := make(chan error, 1)
	r := newRig(t, nil, func(s *site) {
		s.web.Handle("GET /large", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := w.Write(bytes.Repeat([]byte("x"), 64<<20)) // more than all buffers
			writing <- err
		}))
		s.web.Handle("POST /x", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				web.Refuse(w, r, web.Refusal{Status: http.StatusBadRequest, Word: "body", Message: err.Error()})
			}
		}))
		s.web.Handle("GET /events", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(2 * time.Second)
			_, _ = io.WriteString(w, "later\n")
			_ = http.NewResponseController(w).Flush()
		}), web.Stream())
		s.web.Handle("GET /x", text("x"))
	})
	r.web.SetTimeouts(time.Second)
	require.NoError(t, r.runtime.StartServices(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.runtime.Stop(context.Background())) })

	// A machine that stands still makes good clients slow, too, so their requests are repeated.
	again := func(do func() error) {
		t.Helper()
		err := do()
		for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); {
			err = do()
		}
		require.NoError(t, err)
	}
	dial(t, r, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n") // and reads nothing
	again(func() error {                                 // others go on
		a, err := r.client.Get("http://" + r.web.Addr() + "/x")
		if err != nil {
			return err
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		if err == nil && string(body) != "x" {
			err = fmt.Errorf("%d %s", a.StatusCode, body)
		}
		return err
	})
	require.ErrorContains(t, <-writing, "timeout")

	headers := dial(t, r, "GET /x HTTP/1.1\r\nHost: a\r\nX-Slow")
	rest, err := io.ReadAll(headers)
	require.NoError(t, err, "the server closes the connection")
	require.NotContains(t, string(rest), "200 OK")

	slowly := dial(t, r, "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
	answer, err := http.ReadResponse(bufio.NewReader(slowly), nil)
	if err == nil {
		require.Equal(t, http.StatusBadRequest, answer.StatusCode)
		answer.Body.Close()
	} else {
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the connection is closed")
	}

	// The time limit of a request does not end the stream after it on the same connection.
	again(func() error {
		c := dial(t, r, "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
		lines := bufio.NewReader(c)
		first, err := http.ReadResponse(lines, nil)
		if err != nil {
			return err
		}
		defer first.Body.Close()
		if _, err = io.Copy(io.Discard, first.Body); err != nil {
			return err
		}
		if _, err = io.WriteString(c, "GET /events HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return err
		}
		for line := ""; err == nil && line != "later\n"; {
			line, err = lines.ReadString('\n')
		}
		return err
	})
}

func TestRequestsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	r := start(t, nil, func(s *site) {
		s.web.Handle("POST /x", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				web.Refuse(w, r, web.Refusal{Status: http.StatusRequestEntityTooLarge, Word: "too_large", Message: err.Error()})
			}
		}))
	})
	post := func(size int) int {
		a, err := r.client.Post("http://"+r.web.Addr()+"/x", "text/plain", bytes.NewReader(make([]byte, size)))
		require.NoError(t, err)
		defer a.Body.Close()
		_ = json.NewDecoder(a.Body).Decode(&struct{}{})
		return a.StatusCode
	}
	require.Equal(t, http.StatusOK, post(64<<10))
	require.Equal(t, http.StatusRequestEntityTooLarge, post(64<<10+1))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, r.send("POST", "/x", "X-Large", strings.Repeat("x", 32<<10)).status)
}
