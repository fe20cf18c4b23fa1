package httpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// provider is a token endpoint and an API that accepts its tokens.
type provider struct {
	t                  *testing.T
	tokens, api        *httptest.Server
	transport          *Transport
	fetches, delivered atomic.Int64

	mu     sync.Mutex
	now    time.Time
	secret string
	life   int // seconds
	fault  func(w http.ResponseWriter, r *http.Request)
	valid  map[string]bool
}

func newProvider(t *testing.T, change func(*OAuth2)) *provider {
	t.Helper()
	p := &provider{t: t, now: time.Now(), secret: "s3cret", life: 1000, valid: map[string]bool{}}
	p.tokens = httptest.NewServer(http.HandlerFunc(p.issue))
	t.Cleanup(p.tokens.Close)
	p.api = httptest.NewServer(http.HandlerFunc(p.answer))
	t.Cleanup(p.api.Close)
	c := Config{OAuth2: OAuth2{
		TokenURL: p.tokens.URL + "/token?tenant=hidden", ClientID: "millrace", ClientSecret: setting.NewSecret("s3cret"),
		Scopes: []string{"pay", "look"}, Audience: "the api",
	}}
	if change != nil {
		change(&c.OAuth2)
	}
	require.NoError(t, c.Validate(p.api.URL, false))
	transport, err := NewTransport(c, nil, "api", nil)
	require.NoError(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	transport.tokens.now = func() time.Time {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.now
	}
	p.transport = transport
	return p
}

func (p *provider) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *provider) pass(d time.Duration) { p.set(func() { p.now = p.now.Add(d) }) }

func (p *provider) issue(w http.ResponseWriter, r *http.Request) {
	n := p.fetches.Add(1)
	p.mu.Lock()
	fault, secret, life := p.fault, p.secret, p.life
	p.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	id, given, _ := r.BasicAuth()
	if id != "millrace" || given != secret || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "pay look" || r.FormValue("audience") != "the api" {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"invalid_client","error_description":"you sent `+given+`"}`)
		return
	}
	token := fmt.Sprint("token ", n)
	p.set(func() { p.valid["Bearer "+token] = true })
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "bearer", "expires_in": life})
}

func (p *provider) answer(w http.ResponseWriter, r *http.Request) {
	p.delivered.Add(1)
	p.mu.Lock()
	ok := p.valid[r.Header.Get("Authorization")]
	p.mu.Unlock()
	if !ok {
		w.WriteHeader(http.StatusUnauthorized)
	}
	_, _ = io.Copy(w, r.Body)
	_, _ = io.WriteString(w, " with "+r.Header.Get("Authorization"))
}

// post sends a request with a body, and returns the status and the text of the answer.
func (p *provider) post(ctx context.Context) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.api.URL, strings.NewReader("body"))
	require.NoError(p.t, err)
	answer, err := (&http.Client{Transport: p.transport}).Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.Empty(p.t, r.Header, "the request of the caller is not changed")
	return answer.StatusCode, string(text), err
}

func (p *provider) answers(want string) {
	p.t.Helper()
	status, text, err := p.post(p.t.Context())
	require.NoError(p.t, err)
	require.Equal(p.t, http.StatusOK, status)
	require.Equal(p.t, "body with Bearer "+want, text)
}

// fetched waits until no token is being fetched.
func (p *provider) fetched() {
	t := p.transport.tokens
	t.mu.Lock()
	fetching := t.fetching
	t.mu.Unlock()
	if fetching != nil {
		<-fetching
	}
}

func TestRequestsShareAToken(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	var load sync.WaitGroup
	for range 16 {
		load.Go(func() {
			for range 5 {
				status, _, err := p.post(t.Context())
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, status)
			}
		})
	}
	load.Wait()
	require.EqualValues(t, 1, p.fetches.Load())
}

// A new token is fetched before the last one ends. While the endpoint fails, the last one is sent until it
// ends. After that nothing is sent, and the next token is fetched when the endpoint works again.
func TestATokenExpires(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	p.answers("token 1")
	p.pass(799 * time.Second)
	p.answers("token 1")
	p.pass(2 * time.Second)
	p.answers("token 1") // it is valid, and the next one is being fetched
	p.fetched()
	p.answers("token 2")

	p.set(func() {
		p.fault = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	})
	p.pass(850 * time.Second)
	for range 10 {
		p.answers("token 2")
	}
	fetches := p.fetches.Load()
	require.Less(t, fetches, int64(5), "a failing endpoint is not asked by each request")
	p.pass(121 * time.Second) // a token has 30 seconds for the requests under way
	delivered := p.delivered.Load()
	for range 10 {
		_, _, err := p.post(t.Context())
		require.ErrorIs(t, err, ErrNotSent)
		require.ErrorContains(t, err, "the token endpoint fails with status 503")
		require.NotContains(t, err.Error(), "hidden")
	}
	require.Less(t, p.fetches.Load(), fetches+5)
	require.Equal(t, delivered, p.delivered.Load())
	p.set(func() { p.fault = nil })
	p.pass(2 * time.Second)
	p.answers(fmt.Sprint("token ", p.fetches.Load()+1))
}

func TestNothingIsSentWithoutAToken(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *provider) func(http.ResponseWriter, *http.Request){
		"it refuses the secret": func(p *provider) func(http.ResponseWriter, *http.Request) {
			p.secret = "another"
			return nil
		},
		"it answers nonsense": func(*provider) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>s3cret") }
		},
		"it answers without a token": func(*provider) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{}`)
			}
		},
		"it sends us to another server": func(p *provider) func(http.ResponseWriter, *http.Request) {
			return func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, p.api.URL, http.StatusTemporaryRedirect)
			}
		},
		"it ends the connection": func(*provider) func(http.ResponseWriter, *http.Request) {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t, nil)
			p.set(func() { p.fault = fault(p) })
			_, _, err := p.post(t.Context())
			require.ErrorIs(t, err, ErrNotSent)
			require.ErrorContains(t, err, "the token endpoint")
			for _, secret := range []string{"s3cret", "hidden", "tenant"} {
				require.NotContains(t, err.Error(), secret)
			}
			require.Zero(t, p.delivered.Load())
			p.set(func() { p.fault, p.secret = nil, "s3cret" })
			p.pass(2 * time.Second)
			p.answers(fmt.Sprint("token ", p.fetches.Load()+1))
		})
	}
}

// The endpoint takes longer than a request may. The request ends in time, and the fetch goes on for the next one.
func TestAFetchOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	asked, release := p.slow()
	first, end := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, _, err := p.post(first)
		failed <- err
	}()
	<-asked
	end()
	err := <-failed
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrNotSent)
	release()
	p.answers("token 1")
	require.EqualValues(t, 1, p.fetches.Load())
	require.Zero(t, p.transport.tokens.failed)
}

// While a token is valid, no request waits for the next one.
func TestARenewalDelaysNoRequest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	p.answers("token 1")
	asked, release := p.slow()
	p.pass(801 * time.Second)
	for range 5 {
		p.answers("token 1")
	}
	<-asked
	release()
	p.fetched()
	p.answers("token 2")
	require.EqualValues(t, 2, p.fetches.Load())
}

// slow lets the endpoint answer only after release, and says when it was asked.
func (p *provider) slow() (asked chan struct{}, release func()) {
	asked, released := make(chan struct{}, 10), make(chan struct{})
	p.set(func() {
		p.fault = func(w http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-released
			p.set(func() { p.fault = nil })
			p.fetches.Add(-1)
			p.issue(w, r)
		}
	})
	release = sync.OnceFunc(func() { close(released) })
	p.t.Cleanup(release)
	return asked, release
}

// The API does not accept a token any more, for instance because it was revoked. The request is sent again
// with a new one, and with its body.
func TestARefusedTokenIsReplaced(t *testing.T) {
	t.Parallel()
	p := newProvider(t, nil)
	p.answers("token 1")
	p.pass(time.Minute)
	p.set(func() { clear(p.valid) })
	p.answers("token 2")
	require.EqualValues(t, 3, p.delivered.Load())

	p.set(func() { clear(p.valid) })
	for range 5 { // it refuses for another reason
		status, _, err := p.post(t.Context())
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.EqualValues(t, 2, p.fetches.Load())
}

// The endpoint takes the old and the new secret for a while, and then only the new one, while requests are sent.
// The tokens that were fetched with the old one end then, too. Neither side refuses anything.
func TestTheClientSecretIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	pipelinetest.Replace(t, file, []byte("secret-0\n"))
	p := newProvider(t, func(o *OAuth2) { require.NoError(t, o.ClientSecret.UnmarshalText([]byte("file:"+file))) })
	// What the provider writes down, guarded by p.mu.
	accepted := map[string]bool{"secret-0": true}
	tokens, used := map[string]string{}, map[string]bool{} // the secret of each token, and those with whose tokens requests came
	refused, issued := 0, 0
	p.set(func() {
		p.fault = func(w http.ResponseWriter, r *http.Request) {
			_, secret, _ := r.BasicAuth()
			p.mu.Lock()
			defer p.mu.Unlock()
			if !accepted[secret] {
				refused++
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			issued++
			token := fmt.Sprint("token ", issued)
			p.valid["Bearer "+token], tokens["Bearer "+token] = true, secret
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "bearer", "expires_in": 1000})
		}
	})
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		status, text, err := p.post(t.Context())
		switch {
		case errors.Is(err, ErrNotSent) && !strings.Contains(err.Error(), "refuses"): // the endpoint was late, and the caller repeats the call
			return nil
		case err != nil:
			return err
		case status != http.StatusOK:
			return fmt.Errorf("%d %s", status, text)
		}
		p.set(func() { used[tokens[strings.TrimPrefix(text, "body with ")]] = true })
		return nil
	})
	for n := 1; n <= 5; n++ {
		load.More()
		secret := fmt.Sprint("secret-", n)
		p.set(func() { accepted[secret] = true })
		pipelinetest.Replace(t, file, []byte(secret+"\n"))
		p.pass(801 * time.Second) // the token is renewed before it ends
		load.Until("a request has a token of the new secret", func() bool {
			p.pass(time.Second) // a fetch that was late is tried again
			p.mu.Lock()
			defer p.mu.Unlock()
			return used[secret]
		})
		load.More() // nothing has the old token any more
		p.set(func() {
			clear(accepted)
			accepted[secret] = true
			for token, of := range tokens {
				p.valid[token] = of == secret
			}
		})
	}
	load.More()
	load.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Zero(t, refused)
	require.GreaterOrEqual(t, issued, 6)
}

func TestWrongSettingsAreMistakes(t *testing.T) {
	t.Parallel()
	good := OAuth2{TokenURL: "https://sign.example/token", ClientID: "millrace", ClientSecret: setting.NewSecret("s3cret")}
	require.NoError(t, Config{OAuth2: good}.Validate("https://api.example", false))
	require.NoError(t, Config{OAuth2: good}.Validate("http://127.0.0.1:80", false))
	require.NoError(t, Config{OAuth2: good}.Validate("http://api.example", true))
	require.NoError(t, Config{}.Validate("http://api.example", false))
	for want, change := range map[string]func(*Config){
		"oauth2.token_url: must be set with":            func(c *Config) { c.OAuth2.TokenURL = "" },
		"oauth2.token_url: must be an https address":    func(c *Config) { c.OAuth2.TokenURL = "http://sign.example/hidden" },
		"oauth2.client_id: must be set":                 func(c *Config) { c.OAuth2.ClientID = "" },
		"oauth2.client_secret: must be set":             func(c *Config) { c.OAuth2.ClientSecret = setting.Secret{} },
		"oauth2.client_secret: must have one line":      func(c *Config) { c.OAuth2.ClientSecret = setting.NewSecret("hidden\nline") },
		"oauth2.scopes: must be words":                  func(c *Config) { c.OAuth2.Scopes = []string{"pay look"} },
		"ca_file: open /gone":                           func(c *Config) { c.CAFile = "/gone" },
		"cert_file: must be set together with key_file": func(c *Config) { c.CertFile = "/gone" },
	} {
		c := Config{OAuth2: good}
		change(&c)
		err := c.Validate("https://api.example", false)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hidden")
	}
	require.ErrorContains(t, Config{OAuth2: good}.Validate("http://api.example", false), "url: must be https://")
}
