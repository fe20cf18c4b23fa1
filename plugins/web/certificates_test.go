package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/web"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Clients connect all the time while the certificate of the server is replaced, in place and half written
// too. None is refused, each new connection gets the current one, and a stream stays open.
func TestTheCertificateIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	authority, dir := pipelinetest.NewAuthority(t), t.TempDir()
	files := setting.ServerTLS{CertFile: filepath.Join(dir, "server.pem"), KeyFile: filepath.Join(dir, "server.key")}
	issue := func(name string) (key, cert []byte) { return authority.Issue(name, time.Now().Add(time.Hour)) }
	key, cert := issue("server 0")
	pipelinetest.Replace(t, files.KeyFile, key)
	pipelinetest.Replace(t, files.CertFile, cert)
	r := start(t, func(c *web.Config) { c.TLS = files }, func(s *site) {
		s.web.Handle("GET /x", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }))
		s.web.Handle("GET /events", s.events(), web.Stream())
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM)
	// connect returns the name in the certificate that a new connection gets.
	connect := func() (string, error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
		answer, err := (&http.Client{Transport: transport, Timeout: 2 * time.Minute}).Get("https://" + r.web.Addr() + "/x")
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		return answer.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	stream, err := (&http.Client{Transport: transport}).Get("https://" + r.web.Addr() + "/events")
	require.NoError(t, err)
	defer stream.Body.Close()
	requireLine(t, bufio.NewReader(stream.Body), "event: hello")

	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	failed := make(chan error, 2)
	for range cap(failed) {
		load.Go(func() {
			for ctx.Err() == nil {
				if _, err := connect(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	serves := func(want string) {
		t.Helper()
		got, err := connect()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	serves("server 0")
	for n := 1; n <= 3; n++ {
		key, cert := issue(fmt.Sprint("server ", n))
		before := fmt.Sprint("server ", n-1)
		require.NoError(t, os.WriteFile(files.CertFile, cert[:len(cert)/2], 0o600)) // half written
		serves(before)
		require.NoError(t, os.WriteFile(files.CertFile, cert, 0o600))
		serves(before) // its key is not there yet
		pipelinetest.Replace(t, files.KeyFile, key)
		serves(fmt.Sprint("server ", n))
	}
	stop()
	load.Wait()
	require.Empty(t, failed)
	require.Contains(t, r.log.String(), "certificates can't be read again, so the last ones stay in use")
	require.Equal(t, 1.0, r.metric("millrace_web_open_streams", nil), "the stream is open")
}

// The keys of the sign-in come from a server of one's own authority, through the proxy of the environment.
func TestTheKeySetIsFetchedThroughTheProxy(t *testing.T) {
	t.Parallel()
	id, authority := newIdentity(t, "a"), pipelinetest.NewAuthority(t)
	key, cert := authority.Issue("keys.invalid", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(id.set("a")) }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pipelinetest.Replace(t, ca, authority.PEM)
	pipelinetest.BehindProxy(t, map[string]string{"keys.invalid:443": server.Listener.Addr().String()}, func() error {
		r := signInRig(t, signin.Config{JWKSURL: "https://keys.invalid/set", JWKSClient: httpclient.Config{CAFile: ca}})
		if a := r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil)); a.body != "u1" {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		return nil
	})
}
