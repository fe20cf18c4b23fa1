package web_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		tokens, streams := token.New(), sse.New()
		return []pipeline.Plugin{tokens, streams, web.New(tokens, streams)}
	})
}

func TestListensLastAndOnlyWithHandlers(t *testing.T) {
	t.Parallel()
	none := start(t, nil, func(*site) {})
	require.Empty(t, none.web.Addr())
	require.Empty(t, none.web.Announce())

	var during string
	r := newRig(t, nil, func(s *site) {
		s.web.Handle("GET /x", text("x"))
		s.started = func() { during = "listens at: " + s.web.Addr() }
	})
	require.NoError(t, r.runtime.StartServices(t.Context()))
	require.Equal(t, "listens at: ", during, "another service starts later")
	require.Equal(t, "x", r.send("GET", "/x").body)
	require.Equal(t, "http://"+r.web.Addr(), r.web.Announce()["web"])
	require.Contains(t, r.registry.Endpoints(), pipeline.PluginEndpoint{
		Plugin: "site", Use: pipeline.UseWeb, Endpoint: pipeline.Endpoint{Kind: pipeline.KindHTTP, Name: "GET /x"},
	})
	require.NoError(t, r.runtime.Stop(context.Background()))
	require.Empty(t, r.web.Addr())
}

func TestStartsThatFail(t *testing.T) {
	t.Parallel()
	for want, mount := range map[string]func(s *site){
		"two handlers have the pattern GET /x": func(s *site) { s.web.Handle("GET /x", text("")); s.web.Handle("GET /x", text("")) },
		"conflicts with pattern":               func(s *site) { s.web.Handle("/{a}/x", text("")); s.web.Handle("/x/{b}", text("")) },
		"set plugins.web.auth":                 func(s *site) { s.web.Handle("GET /x", text(""), web.Users()) },
	} {
		require.ErrorContains(t, newRig(t, nil, mount).runtime.StartServices(t.Context()), want)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := start(t, func(c *web.Config) { c.Listen = taken.Addr().String() }, func(s *site) { s.web.Handle("GET /x", text("")) })
	select {
	case err := <-r.runtime.Failed():
		require.ErrorContains(t, err, "is in use")
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the start did not fail")
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	pair, _ := pipelinetest.Certificate(t)
	for want, change := range map[string]func(*web.Config){
		"listen: must be host:port":                                       func(c *web.Config) { c.Listen = "8080" },
		"tls.cert_file: must be set together":                             func(c *web.Config) { c.TLS.KeyFile = pair },
		"tls.cert_file: open /absent":                                     func(c *web.Config) { c.TLS = setting.ServerTLS{CertFile: "/absent", KeyFile: "/absent"} },
		"allowed_origins[0]: must be an origin":                           func(c *web.Config) { c.AllowedOrigins = []string{"https://shop.example/"} },
		"allowed_origins[1]: must be an origin":                           func(c *web.Config) { c.AllowedOrigins = []string{"https://a", "*"} },
		"trusted_proxies[0]: must be a network":                           func(c *web.Config) { c.TrustedProxies = []string{"proxy"} },
		"auth.header: must be empty without":                              func(c *web.Config) { c.Auth.Header = "X-User" },
		"auth.issuer: must be set":                                        func(c *web.Config) { c.Auth.JWKSURL = "https://a/jwks" },
		"auth.audience: must be set":                                      func(c *web.Config) { c.Auth.JWKSURL = "https://a/jwks" },
		"auth.jwks_url: must be an https address":                         func(c *web.Config) { c.Auth.JWKSURL = "http://a/jwks" },
		"an https address without a user, got \"https://a:xxxxx@b/jwks\"": func(c *web.Config) { c.Auth.JWKSURL = "https://a:hidden@b/jwks" },
		"auth.jwks_file: open /absent":                                    func(c *web.Config) { c.Auth.JWKSFile = "/absent" },
		"auth.jwks_file: must be empty":                                   func(c *web.Config) { c.Auth.JWKSFile, c.Auth.JWKSURL = "/absent", "https://a" },
		"max_streams: must be >= 0":                                       func(c *web.Config) { c.MaxStreams = -1 },
		"max_connections: must be >= 0":                                   func(c *web.Config) { c.MaxConnections = -1 },
		"max_connections_per_address: must be >= 0":                       func(c *web.Config) { c.MaxConnectionsPerAddress = -1 },
		"max_streams_per_user: must be > 0, got -1":                       func(c *web.Config) { c.MaxStreamsPerUser = -1 },
		"drain_delay: must be >= 0":                                       func(c *web.Config) { c.DrainDelay = -1 },
		"drain_window: must be > 0":                                       func(c *web.Config) { c.DrainWindow = 0 },
	} {
		c := web.DefaultConfig()
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
	for _, proxies := range [][]string{
		{"0.0.0.0/0", "::/0"}, {"0.0.0.0/0"}, {"10.0.0.0/8", "::/0"}, {"0.0.0.0/1", "128.0.0.0/1"}, {"2000::/3"},
		{"0.0.0.0/6", "4.0.0.0/6", "8.0.0.0/6", "12.0.0.0/6"},
	} {
		c := web.DefaultConfig()
		c.TrustedProxies, c.Auth.Header = proxies, "X-User"
		require.ErrorContains(t, c.Validate(), "trusted_proxies: must be the networks of your proxies with auth.header", "%v", proxies)
		c.Auth.Header = ""
		require.NoError(t, c.Validate(), "no client can name a user")
	}
	for _, proxies := range [][]string{
		{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "fe80::/10", "::1"},
		{"0.0.0.0/6", "0.0.0.0/6", "1.0.0.0/8", "1.1.0.0/16", "3.0.0.0/8"}, // one network and its parts
	} {
		c := web.DefaultConfig()
		c.TrustedProxies, c.Auth.Header = proxies, "X-User"
		require.NoError(t, c.Validate(), "%v", proxies)
	}
	for _, header := range []string{
		"Host", "host", "Content-Length", "transfer-encoding", "Connection", "X-Forwarded-For", "Forwarded", "Cookie", "Authorization",
		"Origin", "Sec-Fetch-Site", "User-Agent", "X User", "X-User:", "Bénutzer",
	} {
		c := web.DefaultConfig()
		c.TrustedProxies, c.Auth.Header = []string{"10.0.0.0/8"}, header
		require.ErrorContains(t, c.Validate(), "auth.header: must be a header that only the proxy writes", header)
	}
	for _, header := range []string{"X-User", "Remote-User", "X-Remote-User", "X-Auth-Request-User", "X-Goog-Authenticated-User-Id", "x-amzn-oidc-identity"} {
		c := web.DefaultConfig()
		c.TrustedProxies, c.Auth.Header = []string{"10.0.0.0/8"}, header
		require.NoError(t, c.Validate(), header)
	}
	good := web.Config{
		Listen: ":0", TLS: setting.ServerTLS{CertFile: pair, KeyFile: pair}, AllowedOrigins: []string{"https://shop.example:8443"},
		TrustedProxies: []string{"10.0.0.0/8", "::1"}, MaxStreams: 1, MaxStreamsPerUser: 1, DrainWindow: 1,
		Auth: signin.Config{Header: "X-User", JWKSURL: "http://127.0.0.1/jwks", Issuer: "i", Audience: "a"},
	}
	require.NoError(t, good.Validate())

	p := web.New(token.New(), sse.New())
	require.NoError(t, p.ValidateIn(app.Where{StopTimeout: time.Second}), "it does not listen")
	needed := app.Where{StopTimeout: 20 * time.Second, NeededBy: []string{"site"}}
	require.ErrorContains(t, p.ValidateIn(needed), "less than half of stop_timeout (20s), got 10s")
	needed.StopTimeout++
	needed.StopTimeout++
	require.NoError(t, p.ValidateIn(needed))
}

// A service that does not use the server has no settings for it.
func TestValidateRefusesWhatAPluginNeeds(t *testing.T) {
	t.Parallel()
	validate := func(plugins ...pipeline.Plugin) string {
		file := filepath.Join(t.TempDir(), "mill.yaml")
		require.NoError(t, os.WriteFile(file, []byte("stop_timeout: 20s\n"), 0o600))
		var out, problems bytes.Buffer
		code := app.Main(t.Context(), app.Options{
			Name: "mill", Args: []string{"validate", "--config", file}, Environ: []string{}, Stdout: &out, Stderr: &problems, Plugins: plugins,
		})
		require.Equal(t, problems.Len() > 0, code == app.ExitUsage)
		return problems.String()
	}
	tokens, streams := token.New(), sse.New()
	public := web.New(tokens, streams)
	require.Empty(t, validate(tokens, streams, public))
	problems := validate(tokens, streams, public, &site{mount: func(*site) {}})
	require.Contains(t, problems, "plugins.token.keys: must have a key that all instances share")
	require.Contains(t, problems, "plugins.web.drain_window: must be, with drain_delay, less than half of stop_timeout (20s), got 10s")
}

func TestAnswersThatAreNoneOfAHandler(t *testing.T) {
	t.Parallel()
	r := start(t, nil, func(s *site) { s.web.Handle("GET /x", text("x")) })
	a := r.send("GET", "/absent")
	require.Equal(t, http.StatusNotFound, a.status)
	require.Equal(t, "not_found", a.word(t))
	for _, path := range []string{"/./y", "/y/../z", "//y"} { // also when their clean forms have no handler
		a = r.send("GET", path)
		require.Equal(t, http.StatusNotFound, a.status, path)
		require.Equal(t, "not_found", a.word(t))
		require.Empty(t, a.header.Get("Location"))
	}
	a = r.send("POST", "/x")
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
	require.Equal(t, "GET, HEAD", a.header.Get("Allow"))
	require.Equal(t, "method_not_allowed", a.word(t))
	a = r.send("GET", "/x")
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin",
		"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
	} {
		require.Equal(t, want, a.header.Get(name))
	}
	require.Equal(t, 1.0, r.metric("millrace_web_requests_total", map[string]string{"pattern": "GET /x", "status": "2xx"}))
	require.Equal(t, 5.0, r.metric("millrace_web_requests_total", map[string]string{"pattern": "none", "status": "4xx"}))
	require.Equal(t, 1.0, r.metric("millrace_web_request_duration_seconds", map[string]string{"pattern": "GET /x"}))
	a = r.send("GET", "/./x")
	require.Equal(t, http.StatusTemporaryRedirect, a.status)
	require.Equal(t, "/x", a.header.Get("Location"))
}

func TestKeysOfTokensArePublic(t *testing.T) {
	t.Parallel()
	r := start(t, nil, func(s *site) { s.web.Handle("GET /x", text("x")) })
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal([]byte(r.send("GET", "/.well-known/jwks.json").body), &set))
	require.Len(t, set.Keys, 1)
	require.True(t, set.Keys[0].IsPublic())
}

// Other services read the keys of the files as they are at that time.
func TestKeysOfTokensFollowTheirFiles(t *testing.T) {
	t.Parallel()
	key := token.KeyConfig{File: filepath.Join(t.TempDir(), "key.pem")}
	require.NoError(t, token.CreateKey(key.File))
	tokens, streams := token.New(), sse.New()
	tokens.Settings().(*token.Config).Keys = []token.KeyConfig{key}
	p := web.New(tokens, streams)
	p.Settings().(*web.Config).Listen = "127.0.0.1:0"
	p.Handle("GET /x", text("x"))
	pipelinetest.Start(t, tokens, streams, p)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	kid := func() string {
		answer, err := client.Get("http://" + p.Addr() + "/.well-known/jwks.json")
		require.NoError(t, err)
		defer answer.Body.Close()
		var set jose.JSONWebKeySet
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&set))
		require.Len(t, set.Keys, 1)
		return set.Keys[0].KeyID
	}
	before := kid()
	require.NoError(t, os.Remove(key.File))
	require.Equal(t, before, kid(), "the last keys stay in use")
	require.NoError(t, token.CreateKey(key.File))
	require.NotEqual(t, before, kid())
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, nil, func(s *site) {
		s.web.Handle("GET /{status}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status := map[string]int{"full": 503, "limit": 429, "gone": 410, "token": 401}[r.PathValue("status")]
			web.Refuse(w, r, web.Refusal{Status: status, Word: r.PathValue("status"), Message: "no", RetryAfter: 7 * time.Second})
		}))
	})
	for path, status := range map[string]int{"/full": 503, "/limit": 429} {
		a := r.send("GET", path)
		require.Equal(t, status, a.status)
		require.Equal(t, "7", a.header.Get("Retry-After"))
		require.Equal(t, path[1:], a.word(t))
		a = r.send("GET", path, "Accept", "text/event-stream")
		require.Equal(t, http.StatusOK, a.status, "a browser connects again only after 200")
		require.Equal(t, "text/event-stream", a.header.Get("Content-Type"))
		require.Regexp(t, `^retry: \d+\nevent: busy\ndata: \{"reason":"`+path[1:]+`"\}\n\n$`, a.body)
	}
	for path, status := range map[string]int{"/gone": 410, "/token": 401} {
		a := r.send("GET", path, "Accept", "text/event-stream")
		require.Equal(t, status, a.status, "a browser must not connect again")
		require.Empty(t, a.header.Get("Retry-After"))
	}
}

func TestPagesRunOnlyTheirOwnScripts(t *testing.T) {
	t.Parallel()
	page := template.Must(template.New("page").Parse(`<script nonce="{{.Nonce}}">let job = {{.Data}}</script>`))
	broken := template.Must(template.New("broken").Parse(`before {{.Absent}}`))
	r := start(t, nil, func(s *site) {
		s.web.Handle("GET /page", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.web.Page(w, r, page, "</script><script>alert(1)</script>")
		}))
		s.web.Handle("GET /broken", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.web.Page(w, r, broken, 1) }))
	})
	nonces := map[string]bool{}
	for range 2 {
		a := r.send("GET", "/page")
		nonce := regexp.MustCompile(`script-src 'nonce-(\w{20,})'`).FindStringSubmatch(a.header.Get("Content-Security-Policy"))
		require.NotNil(t, nonce)
		require.Contains(t, a.body, `<script nonce="`+nonce[1]+`">`)
		require.Equal(t, 1, strings.Count(a.body, "<script"), "data is escaped")
		require.Len(t, a.header.Values("Content-Security-Policy"), 1)
		require.NotContains(t, a.header.Get("Content-Security-Policy"), "unsafe")
		nonces[nonce[1]] = true
	}
	require.Len(t, nonces, 2, "each answer has its own")
	a := r.send("GET", "/broken")
	require.Equal(t, http.StatusInternalServerError, a.status)
	require.NotContains(t, a.body, "before")
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	file, _ := pipelinetest.Certificate(t)
	mount := func(s *site) {
		s.web.Handle("GET /x", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
		s.web.Handle("GET /events", s.events(), web.Stream())
	}
	check := func(address string, transport *http.Transport) {
		t.Helper()
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		a, err := client.Get(address + "/x")
		require.NoError(t, err)
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		require.Equal(t, "HTTP/2.0", string(body))
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/events", http.NoBody)
		require.NoError(t, err)
		stream, err := client.Do(request)
		require.NoError(t, err)
		defer stream.Body.Close()
		requireLine(t, bufio.NewReader(stream.Body), "event: hello")
	}
	plain := start(t, nil, mount)
	h2c := &http.Transport{Protocols: &http.Protocols{}}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	check("http://"+plain.web.Addr(), h2c)

	secure := start(t, func(c *web.Config) { c.TLS = setting.ServerTLS{CertFile: file, KeyFile: file} }, mount)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(text))
	require.Contains(t, secure.web.Announce()["web"], "https://")
	check("https://"+secure.web.Addr(), &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true})
}

// requireLine reads lines until one of them is want.
func requireLine(t testing.TB, from *bufio.Reader, want string) {
	t.Helper()
	for {
		line, err := from.ReadString('\n')
		require.NoError(t, err, "before %q", want)
		if strings.TrimRight(line, "\n") == want {
			return
		}
	}
}

func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	var refused atomic.Int32
	r := start(t, func(c *web.Config) {
		c.MaxStreams, c.MaxStreamsPerUser = 3, 2
		c.TrustedProxies, c.Auth.Header = []string{"127.0.0.1"}, "X-User"
	}, func(s *site) {
		s.web.Handle("GET /events", s.events(), web.Stream(), web.Refused(func(*http.Request) { refused.Add(1) }))
		s.web.Handle("GET /x", text("x"))
	})
	open := func(user string) *http.Response {
		a := r.open("GET", "/events", "X-User", user, "Accept", "text/event-stream")
		requireLine(t, bufio.NewReader(a.Body), "event: hello")
		return a
	}
	first := open("u1")
	defer open("u1").Body.Close()
	require.Equal(t, 2.0, r.metric("millrace_web_open_streams", nil))
	a := r.send("GET", "/events", "X-User", "u1")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "too_many", a.word(t))
	require.Contains(t, r.send("GET", "/events", "X-User", "u1", "Accept", "text/event-stream").body, `{"reason":"too_many"}`)
	defer open("u2").Body.Close()
	require.EqualValues(t, 0, refused.Load(), "the user has other streams")
	require.Equal(t, "full", r.send("GET", "/events", "X-User", "u3").word(t))
	require.EqualValues(t, 1, refused.Load())
	require.Equal(t, "x", r.send("GET", "/x", "X-User", "u1").body, "a request is no stream")
	require.Equal(t, 2.0, r.metric("millrace_web_refused_total", map[string]string{"reason": "too_many"}))
	first.Body.Close()
	require.Eventually(t, func() bool { return r.metric("millrace_web_open_streams", nil) == 2 }, 2*time.Minute, 10*time.Millisecond)
	defer open("u1").Body.Close()
}

// A token of the handler may name a user. Users behind one address have streams of their own then.
func TestStreamsOfTheUsersOfTokens(t *testing.T) {
	t.Parallel()
	type checked struct{}
	var seen atomic.Int32
	r := start(t, func(c *web.Config) {
		c.MaxStreamsPerUser, c.TrustedProxies, c.Auth.Header = 1, []string{"127.0.0.1"}, "X-User"
	}, func(s *site) {
		events := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Context().Value(checked{}) == r.Header.Get("X-Token") {
				seen.Add(1)
			}
			s.events().ServeHTTP(w, r)
		})
		s.web.Handle("GET /events", events, web.Stream(), web.Subjects(func(r *http.Request) (context.Context, string) {
			raw := r.Header.Get("X-Token")
			return context.WithValue(r.Context(), checked{}, raw), strings.TrimPrefix(raw, "forged")
		}))
	})
	status := func(headers ...string) int {
		a := r.open("GET", "/events", headers...)
		t.Cleanup(func() { _ = a.Body.Close() })
		return a.StatusCode
	}
	for i := range 11 {
		require.Equal(t, http.StatusOK, status("X-Token", fmt.Sprint("u", i)))
	}
	require.EqualValues(t, 11, seen.Load(), "the handler has the context")
	require.Equal(t, http.StatusTooManyRequests, status("X-Token", "u3"))
	require.Equal(t, http.StatusOK, status("X-Token", "forged"), "the address has no stream yet")
	require.Equal(t, http.StatusTooManyRequests, status("X-Token", "forged"))
	require.Equal(t, http.StatusTooManyRequests, status())
	require.Equal(t, http.StatusOK, status("X-Token", "u3", "X-User", "ann"), "the sign-in decides")
	require.Equal(t, http.StatusTooManyRequests, status("X-Token", "u99", "X-User", "ann"))
}

func TestDrain(t *testing.T) {
	t.Parallel()
	begun, release, asked := make(chan struct{}), make(chan struct{}), make(chan struct{})
	endSlow, endAsking := sync.OnceFunc(func() { close(release) }), sync.OnceFunc(func() { close(asked) })
	const drainDelay = 4 * time.Second
	r := newRig(t, func(c *web.Config) { c.DrainDelay = drainDelay }, func(s *site) {
		s.stopped = func() { <-asked }
		s.web.Handle("GET /events", s.events(), web.Stream())
		s.web.Handle("GET /x", text("x"))
		s.web.Handle("GET /slow", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(begun)
			<-release
			_, _ = io.WriteString(w, "complete")
		}))
	})
	require.NoError(t, r.runtime.StartServices(t.Context()))
	stream := r.open("GET", "/events", "Accept", "text/event-stream")
	defer stream.Body.Close()
	lines := bufio.NewReader(stream.Body)
	requireLine(t, lines, "event: hello")
	slow, ended := make(chan reply, 1), make(chan struct{})
	go func() { defer close(ended); slow <- r.send("GET", "/slow") }()
	t.Cleanup(func() { endSlow(); endAsking(); <-ended })
	<-begun

	delay, stopped := time.Now(), make(chan error, 1)
	go func() { stopped <- r.runtime.Stop(context.Background()) }()
	require.Eventually(t, func() bool {
		a, err := r.client.Get("http://" + r.ops.Addr() + "/readyz")
		require.NoError(t, err)
		defer a.Body.Close()
		return a.StatusCode == http.StatusServiceUnavailable
	}, 2*time.Minute, time.Millisecond)
	status := r.send("GET", "/x").status
	if time.Since(delay) < drainDelay { // a machine may stand still until it is over
		require.Equal(t, http.StatusOK, status, "it serves while load balancers read /readyz")
	}
	requireLine(t, lines, "event: closed")
	require.GreaterOrEqual(t, time.Since(delay), drainDelay)
	a := r.send("GET", "/x")
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Equal(t, "draining", a.word(t))
	require.Contains(t, r.send("GET", "/events", "Accept", "text/event-stream").body, `{"reason":"draining"}`)
	endAsking()
	endSlow()
	require.Equal(t, "complete", (<-slow).body, "a request in progress is finished")
	require.NoError(t, <-stopped)
	_, err := net.Dial("tcp", stream.Request.URL.Host)
	require.Error(t, err)
}
