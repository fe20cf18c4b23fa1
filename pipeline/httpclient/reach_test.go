package httpclient_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// files are those of a client of a server with the authority.
func files(t *testing.T, a *pipelinetest.Authority) httpclient.Config {
	t.Helper()
	dir := t.TempDir()
	c := httpclient.Config{CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	pipelinetest.Replace(t, c.CAFile, a.PEM)
	issue(t, a, "client", c.CertFile, c.KeyFile)
	return c
}

func reach(t *testing.T, c httpclient.Config, address string) (string, error) {
	t.Helper()
	transport, err := httpclient.NewTransport(c, nil, "api", nil)
	require.NoError(t, err)
	t.Cleanup(transport.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return transport.Reach(ctx, address)
}

// A server is reached without a request, also by a client that would first need a token.
func TestReachSendsNoRequest(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	a := pipelinetest.NewAuthority(t)
	s := newSecured(t, a, handler)
	c := files(t, a)
	c.OAuth2 = httpclient.OAuth2{TokenURL: s.url + "/token", ClientID: "client", ClientSecret: setting.NewSecret("s3cret")}
	plain := httptest.NewServer(handler)
	defer plain.Close()
	for _, address := range []string{s.url, s.url + "/some/path?with=secrets", plain.URL} {
		proxy, err := reach(t, c, address)
		require.NoError(t, err, address)
		require.Empty(t, proxy)
	}
	plain.Close() // once it has read all
	require.Zero(t, requests.Load())
}

func TestReachOfAServerThatIsNotReached(t *testing.T) {
	t.Parallel()
	ours, theirs := pipelinetest.NewAuthority(t), pipelinetest.NewAuthority(t)
	s := newSecured(t, ours, nil)
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	good := files(t, ours)

	_, err := reach(t, good, "http://127.0.0.1:1")
	require.ErrorContains(t, err, "connection refused")
	require.False(t, httpclient.Refused(err))

	if os.Getenv("HTTPS_PROXY")+os.Getenv("https_proxy") == "" { // a proxy would look for it
		_, err = reach(t, good, "https://no-such-host.invalid")
		var dns *net.DNSError
		require.ErrorAs(t, err, &dns)
	}

	_, err = reach(t, good, strings.Replace(plain.URL, "http:", "https:", 1))
	require.ErrorAs(t, err, new(tls.RecordHeaderError))

	distrusting := good
	distrusting.CAFile = files(t, theirs).CAFile
	_, err = reach(t, distrusting, s.url)
	var distrust *tls.CertificateVerificationError
	require.ErrorAs(t, err, &distrust)
	require.False(t, httpclient.Refused(err))

	stranger := files(t, theirs)
	stranger.CAFile = good.CAFile
	_, err = reach(t, stranger, s.url)
	require.ErrorContains(t, err, "tls: ")
	require.True(t, httpclient.Refused(err), "%v", err)

	_, err = reach(t, httpclient.Config{CAFile: good.CAFile}, s.url)
	require.True(t, httpclient.Refused(err), "without a certificate: %v", err)
}

// A server may end a handshake for a reason of its own, such as a name that it does not have.
func TestReachOfAServerThatEndsTheHandshake(t *testing.T) {
	t.Parallel()
	a := pipelinetest.NewAuthority(t)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("no such name") }}
	s.StartTLS()
	defer s.Close()
	_, err := reach(t, files(t, a), s.URL)
	require.ErrorContains(t, err, "remote error: tls: ")
	require.False(t, httpclient.Refused(err), "%v", err)
}

// A server that never closes the connection has accepted the client.
func TestReachOfAServerThatDoesNotClose(t *testing.T) {
	t.Parallel()
	a := pipelinetest.NewAuthority(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	issue(t, a, "api.invalid", cert, key)
	own, err := setting.ServerTLS{CertFile: cert, KeyFile: key}.Live("server", nil)
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", own)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, c) // until the client has ended what it sends
		<-t.Context().Done()
		_ = c.Close()
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	transport, err := httpclient.NewTransport(files(t, a), nil, "api", nil)
	require.NoError(t, err)
	_, err = transport.Reach(t.Context(), "https://"+l.Addr().String())
	require.NoError(t, err)
}

// The proxy of the environment is used, named without its credential, and tells what it could not reach.
func TestReachThroughAProxy(t *testing.T) {
	t.Parallel()
	a := pipelinetest.NewAuthority(t)
	s := newSecured(t, a, nil)
	c := files(t, a)
	pipelinetest.BehindProxy(t, map[string]string{"api.invalid:443": strings.TrimPrefix(s.url, "https://")}, func() error {
		proxy, err := reach(t, c, "https://api.invalid/path")
		if err != nil {
			return err
		}
		require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, proxy)
		proxy, err = reach(t, c, "https://other.invalid")
		require.ErrorContains(t, err, "Bad Gateway")
		require.NotEmpty(t, proxy)
		_, err = reach(t, c, "http://plain.invalid") // the proxy alone is reached
		return err
	})
}
