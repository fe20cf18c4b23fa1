package httpclient_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// secured is a server of the standard library that requires certificates of its clients, and answers with
// their names. Its own certificate is of files.
type secured struct {
	cert, key, url string

	mu      sync.Mutex
	trusted []byte
}

func newSecured(t *testing.T, a *pipelinetest.Authority, handler http.Handler) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{cert: filepath.Join(dir, "server.pem"), key: filepath.Join(dir, "server.key"), trusted: a.PEM}
	issue(t, a, "api.invalid", s.cert, s.key)
	own, err := setting.ServerTLS{CertFile: s.cert, KeyFile: s.key}.Live("server", nil)
	require.NoError(t, err)
	own.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := own.Clone()
		c.GetConfigForClient, c.ClientAuth, c.ClientCAs = nil, tls.RequireAndVerifyClientCert, x509.NewCertPool()
		s.mu.Lock()
		defer s.mu.Unlock()
		c.ClientCAs.AppendCertsFromPEM(s.trusted)
		return c, nil
	}
	if handler == nil {
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
		})
	}
	server := &http.Server{Handler: handler, TLSConfig: own, ReadHeaderTimeout: time.Minute}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.ServeTLS(l, "", "") })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	s.url = "https://" + l.Addr().String()
	return s
}

func (s *secured) trust(authorities ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusted = slices.Concat(authorities...)
}

// issue replaces the files of a certificate.
func issue(t *testing.T, a *pipelinetest.Authority, name, cert, key string) {
	t.Helper()
	private, public := a.Issue(name, time.Now().Add(time.Hour))
	pipelinetest.Replace(t, cert, public)
	pipelinetest.Replace(t, key, private)
}

func ask(ctx context.Context, client *http.Client, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, text), err
}

// All certificates of both sides are replaced three times while requests are sent, in the order that an
// operator uses. No request fails, also while a file is half written.
func TestCertificatesAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	before := pipelinetest.NewAuthority(t)
	s := newSecured(t, before, nil)
	dir := t.TempDir()
	c := httpclient.Config{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	pipelinetest.Replace(t, c.CAFile, before.PEM)
	issue(t, before, "client 0", c.CertFile, c.KeyFile)
	require.NoError(t, c.Validate(s.url, false))
	transport, err := httpclient.NewTransport(c, nil, "api", nil)
	require.NoError(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: time.Minute}

	var answers sync.Map // each text
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		text, err := ask(t.Context(), client, s.url)
		answers.Store(text, true)
		return err
	})
	load.More()
	for n := 1; n <= 3; n++ {
		next := pipelinetest.NewAuthority(t)
		both := slices.Concat(before.PEM, next.PEM)
		require.NoError(t, os.WriteFile(c.CAFile, both[:len(both)-30], 0o600)) // half written
		s.trust(before.PEM, next.PEM)
		load.More()
		pipelinetest.Replace(t, c.CAFile, both)
		load.More()
		issue(t, next, "api.invalid", s.cert, s.key)
		issue(t, next, fmt.Sprint("client ", n), c.CertFile, c.KeyFile)
		load.More()
		_, answered := answers.Load(fmt.Sprintf("200 client %d", n))
		require.True(t, answered)
		pipelinetest.Replace(t, c.CAFile, next.PEM)
		s.trust(next.PEM)
		load.More()
		before = next
	}
	load.Stop()
	answers.Range(func(text, _ any) bool {
		require.Regexp(t, `^200 client [0-3]$`, text)
		return true
	})
}

// The API, and the token endpoint that its client needs, are reached through the proxy of the environment.
func TestTheProxyOfTheEnvironmentIsUsed(t *testing.T) {
	t.Parallel()
	a := pipelinetest.NewAuthority(t)
	c := files(t, a)
	s := newSecured(t, a, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"access_token":"of the endpoint","token_type":"Bearer","expires_in":600}`)
			return
		}
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
	}))
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "plain") }))
	defer plain.Close()
	c.OAuth2 = httpclient.OAuth2{TokenURL: "https://api.invalid/token", ClientID: "client"}
	hosts := map[string]string{"api.invalid:443": strings.TrimPrefix(s.url, "https://"), "plain.invalid:80": plain.Listener.Addr().String()}
	pipelinetest.BehindProxy(t, hosts, func() error {
		transport, err := httpclient.NewTransport(c, nil, "api", nil)
		if err != nil {
			return err
		}
		defer transport.CloseIdleConnections()
		for url, want := range map[string]string{"https://api.invalid/": "200 Bearer of the endpoint", "http://plain.invalid/": "200 plain"} {
			got, err := ask(t.Context(), &http.Client{Transport: transport}, url)
			if err != nil {
				return err
			}
			require.Equal(t, want, got)
		}
		return nil
	})
}
