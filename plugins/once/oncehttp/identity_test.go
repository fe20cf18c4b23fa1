package oncehttp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

func credentials(tokenURL string) httpclient.OAuth2 {
	return httpclient.OAuth2{TokenURL: tokenURL, ClientID: "millrace", ClientSecret: setting.NewSecret("s3cret")}
}

// guarded is an API with a token endpoint at the same address, as behind a gateway. Only the last token is
// valid.
type guarded struct {
	URL             string
	fetched, called atomic.Int64
	down, refuses   atomic.Bool
	life            int // of a token, in seconds
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{life: 3600}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, _ *http.Request) {
		if g.down.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"bearer","expires_in":%d}`, g.fetched.Add(1), g.life)
	})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		g.called.Add(1)
		sent := r.Header.Get("Authorization")
		if g.refuses.Load() || sent != fmt.Sprint("Bearer token-", g.fetched.Load()) {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"code":"unauthorized","message":"what is `+strings.TrimPrefix(sent, "Bearer ")+`?"}`)
			return
		}
		io.WriteString(w, `{"id":"t-1"}`)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	g.URL = s.URL
	return g
}

func (g *guarded) client(t *testing.T) *oncehttp.Client {
	t.Helper()
	return newClient(t, g.URL, func(cfg *oncehttp.Config) { cfg.OAuth2 = credentials(g.URL + "/token") })
}

// Calls share a fetched token, and no answer that repeats it shows it.
func TestCallsHaveAFetchedToken(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	client := g.client(t)
	for range 5 {
		require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
		require.Equal(t, once.Done, find(t.Context(), client, another()).Class)
	}
	require.EqualValues(t, 1, g.fetched.Load())

	g.refuses.Store(true)
	a := post(t.Context(), client, another())
	require.Equal(t, once.Misconfigured, a.Class)
	require.True(t, a.General, "no effect ends by it")
	require.Equal(t, "401 Unauthorized: unauthorized what is [redacted]?", a.Text)
}

// While no token can be fetched nothing is sent, so also an effect that must never be repeated waits.
func TestNothingIsSentWithoutAToken(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.down.Store(true)
	client := g.client(t)
	never := attempt(another())
	never.Repeat = once.Never
	a := oncehttp.Post(t.Context(), client, "/v1/invoices", never)
	require.Equal(t, once.NotSent, a.Class, a.Text)
	require.True(t, a.General, "no effect ends by it")
	require.ErrorIs(t, a.Err, httpclient.ErrNotSent)
	require.Contains(t, a.Text, "the token endpoint fails with status 502")
	require.Zero(t, g.called.Load())
	g.down.Store(false)
	require.Eventually(t, func() bool {
		return oncehttp.Post(t.Context(), client, "/v1/invoices", never).Class == once.Done
	}, time.Minute, 10*time.Millisecond)
}

// A token that expires is fetched on a connection whose last call had a deadline that has passed by then.
func TestATokenIsFetchedOnTheConnectionsOfTheAPI(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	g.life = 1
	client := g.client(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		a := post(ctx, client, another())
		cancel()
		if ctx.Err() != nil && a.Class != once.Done { // the machine is busy
			return false
		}
		require.Equal(t, once.Done, a.Class, a.Text)
		return g.fetched.Load() > 2
	}, time.Minute, 150*time.Millisecond)
}

// The client presents its certificate, and follows the files of both sides without a restart.
func TestCertificatesOfTheClientAreReadAgain(t *testing.T) {
	t.Parallel()
	before := pipelinetest.NewAuthority(t)
	dir := t.TempDir()
	id := httpclient.Config{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	issue := func(a *pipelinetest.Authority, name, cert, key string) {
		private, public := a.Issue(name, time.Now().Add(time.Hour))
		pipelinetest.Replace(t, cert, public)
		pipelinetest.Replace(t, key, private)
	}
	own := setting.ServerTLS{CertFile: filepath.Join(dir, "server.pem"), KeyFile: filepath.Join(dir, "server.key")}
	issue(before, "billing.invalid", own.CertFile, own.KeyFile)
	live, err := own.Live("server", nil)
	require.NoError(t, err)
	var mu sync.Mutex
	trusted := before.PEM
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"id":"for `+r.TLS.PeerCertificates[0].Subject.CommonName+`"}`)
	}))
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: live.GetCertificate, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: x509.NewCertPool()}
		mu.Lock()
		defer mu.Unlock()
		c.ClientCAs.AppendCertsFromPEM(trusted)
		return c, nil
	}}
	s.StartTLS()
	t.Cleanup(s.Close)
	pipelinetest.Replace(t, id.CAFile, before.PEM)
	issue(before, "millrace 1", id.CertFile, id.KeyFile)
	client := newClient(t, s.URL, func(cfg *oncehttp.Config) { cfg.Config = id })
	require.Equal(t, "for millrace 1", post(t.Context(), client, another()).Receipt)

	next := pipelinetest.NewAuthority(t)
	mu.Lock()
	trusted = slices.Concat(before.PEM, next.PEM)
	mu.Unlock()
	pipelinetest.Replace(t, id.CAFile, trusted)
	issue(next, "billing.invalid", own.CertFile, own.KeyFile)
	issue(next, "millrace 2", id.CertFile, id.KeyFile)
	require.Equal(t, "for millrace 2", post(t.Context(), client, another()).Receipt, "of the new authority on both sides")
}
