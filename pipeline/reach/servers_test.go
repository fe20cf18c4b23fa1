package reach_test

import (
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
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/reach"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// diagnoseServers returns the checks by the server that they are about.
func diagnoseServers(t *testing.T, s reach.Servers) (map[string]operate.Check, operate.Diagnosis) {
	t.Helper()
	d := operate.Diagnose(t.Context(), s.Examinations(), 2*time.Minute, nil) // the machine may be busy
	checks := map[string]operate.Check{}
	for _, c := range d.Checks {
		_, server, _ := strings.Cut(c.Name, s.Name+" ")
		checks[strings.TrimSuffix(server, " connection")] = c
	}
	return checks, d
}

// The API and the server of its tokens have a line each, and neither gets a request.
func TestServersAreReachedWithoutARequest(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	count := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	api, tokens := httptest.NewServer(count), httptest.NewServer(count)
	defer api.Close()
	defer tokens.Close()
	s := reach.Servers{Name: "shop", URL: api.URL + "/v1", Client: httpclient.Config{
		OAuth2: httpclient.OAuth2{TokenURL: tokens.URL + "/token", ClientID: "shop", ClientSecret: setting.NewSecret("s3cret")},
	}}
	_, d := diagnoseServers(t, s)
	require.Equal(t, []operate.Check{
		{Name: "shop " + api.URL + " connection", Level: operate.OK, Text: "opened, and no request sent"},
		{Name: "shop " + tokens.URL + " connection", Level: operate.OK, Text: "opened, and no request sent"},
	}, d.Checks)
	api.Close() // once it has read all
	tokens.Close()
	require.Zero(t, requests.Load())

	checks, d := diagnoseServers(t, s)
	require.Equal(t, []string{"shop " + api.URL, "shop " + tokens.URL}, d.Away)
	require.Contains(t, checks[tokens.URL].Text, "connection refused")

	s.Optional = true
	checks, d = diagnoseServers(t, s)
	require.Empty(t, d.Away)
	require.Equal(t, 2, d.Warnings)
	require.Contains(t, checks[api.URL].Text, "connection refused")
	require.Contains(t, checks[api.URL].Remedy, "start the server")
}

// What prevents a connection decides what to do, and whether the server is away.
func TestServersThatAreNotReached(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	trusted, other := httptest.NewTLSServer(http.NotFoundHandler()), pipelinetest.NewAuthority(t)
	t.Cleanup(trusted.Close)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pipelinetest.Replace(t, ca, other.PEM)
	for name, tc := range map[string]struct {
		url, text, remedy string
		client            httpclient.Config
		away              bool
	}{
		"nobody listens":        {url: "http://" + nobody, text: "connection refused", remedy: "start the server", away: true},
		"no such host":          {url: "https://api.invalid", text: "lookup api.invalid", remedy: "correct the address in the settings, or the name servers", away: true},
		"it speaks no TLS":      {url: strings.Replace(plain.URL, "http:", "https:", 1), text: "does not look like a TLS handshake", remedy: "begin the address"},
		"another authority":     {url: trusted.URL, client: httpclient.Config{CAFile: ca}, text: "certificate", remedy: "set ca_file"},
		"no authority":          {url: trusted.URL, text: "certificate", remedy: "set ca_file"},
		"a file that is absent": {url: trusted.URL, client: httpclient.Config{CAFile: ca + ".absent"}, text: "ca_file", remedy: "correct ca_file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.HasSuffix(tc.url, ".invalid") && os.Getenv("HTTPS_PROXY")+os.Getenv("https_proxy") != "" {
				t.Skip("a proxy looks for the host")
			}
			_, d := diagnoseServers(t, reach.Servers{Name: "shop", URL: tc.url, Client: tc.client})
			require.Len(t, d.Checks, 1)
			require.Equal(t, operate.Fail, d.Checks[0].Level)
			require.Contains(t, d.Checks[0].Text, tc.text)
			require.True(t, strings.HasPrefix(d.Checks[0].Remedy, tc.remedy), d.Checks[0])
			require.Equal(t, tc.away, len(d.Away) == 1, d.Checks[0])
		})
	}
}

// A server that accepts a connection and says nothing is one that does not answer.
func TestAServerThatDoesNotSpeak(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts for it
	require.NoError(t, err)
	defer l.Close()
	d := operate.Diagnose(t.Context(), reach.Servers{Name: "shop", URL: "https://" + l.Addr().String()}.Examinations(), 100*time.Millisecond, nil)
	require.Equal(t, []string{"shop https://" + l.Addr().String()}, d.Away)
	require.Regexp(t, "no answer (in time|within)", d.Checks[0].Text)
}

// It is not parallel, because a process that it starts has the closed listeners of other tests for a moment.
func TestServersBehindAProxy(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	pipelinetest.BehindProxy(t, map[string]string{"api.invalid:443": server.Listener.Addr().String()}, func() error {
		_, d := diagnoseServers(t, reach.Servers{Name: "shop", URL: "https://other.invalid"})
		if d.Checks[0].Remedy == "" || !strings.Contains(d.Checks[0].Text, "through the proxy http://127.0.0.1:") {
			return net.ErrClosed
		}
		require.Contains(t, d.Checks[0].Text, "Bad Gateway")
		require.True(t, strings.HasPrefix(d.Checks[0].Remedy, "correct HTTPS_PROXY"), d.Checks[0])
		checks, _ := diagnoseServers(t, reach.Servers{Name: "shop", URL: "http://plain.invalid"})
		require.Regexp(t, "^called through the proxy http://127.0.0.1:[0-9]+, which was reached", checks["http://plain.invalid"].Text)
		checks, _ = diagnoseServers(t, reach.Servers{Name: "shop", URL: "https://api.invalid"})
		if !strings.Contains(checks["https://api.invalid"].Text, "does not look like a TLS handshake") {
			return net.ErrClosed
		}
		return nil
	})
}
