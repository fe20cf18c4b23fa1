package pipelinetest

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// behindProxy is the variable that a test finds in the processes that BehindProxy starts.
const behindProxy = "MILLRACE_TEST_BEHIND_PROXY"

// BehindProxy proves that the client of an HTTP API uses the proxy of the environment. Each host, with its
// port, is a name that no resolver has, and only the proxy knows the address of its server. BehindProxy
// runs the calling test once more in a process of its own, because a process reads HTTP_PROXY, HTTPS_PROXY
// and NO_PROXY once. There call must succeed through the proxy. In a second process NO_PROXY has the names,
// and call must fail without it.
func BehindProxy(t *testing.T, hosts map[string]string, call func() error) {
	t.Helper()
	mode := os.Getenv(behindProxy)
	if mode == "" {
		for _, mode := range []string{"used", "not used"} {
			run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1") //nolint:gosec // this program
			run.Env = append(os.Environ(), behindProxy+"="+mode)
			out, err := run.CombinedOutput()
			require.NoError(t, err, "proxy %s: %s", mode, out)
			require.Contains(t, string(out), "--- PASS: "+t.Name(), "the test has not run")
		}
		return
	}
	p := &proxy{hosts: hosts}
	server := httptest.NewServer(p)
	defer server.Close()
	without := []string{"elsewhere.invalid"}
	for host := range hosts {
		name, _, err := net.SplitHostPort(host)
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(name, ".invalid"), "%s must be a name that is never resolved (RFC 6761)", name)
		if mode != "used" {
			without = append(without, name)
		}
	}
	for name, value := range map[string]string{"HTTP_PROXY": server.URL, "HTTPS_PROXY": server.URL, "NO_PROXY": strings.Join(without, ",")} {
		require.NoError(t, os.Setenv(name, value)) //nolint:usetesting // the test may be parallel; this process has no other one
		require.NoError(t, os.Unsetenv(strings.ToLower(name)))
	}
	if err := call(); mode == "used" {
		require.NoError(t, err)
	} else {
		require.Error(t, err)
	}
	for host := range hosts {
		require.Equal(t, mode == "used", p.reached(host), "%s, proxy %s", host, mode)
	}
}

// proxy is an HTTP proxy (RFC 9110, section 9.3.6) that resolves only its own hosts.
type proxy struct {
	hosts map[string]string // host:port, and the address of its server

	mu   sync.Mutex
	seen []string
}

func (p *proxy) reached(host string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.seen, host)
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "80")
	}
	address, known := p.hosts[host]
	if !known {
		http.Error(w, "no such host", http.StatusBadGateway)
		return
	}
	p.mu.Lock()
	p.seen = append(p.seen, host)
	p.mu.Unlock()
	if r.Method != http.MethodConnect {
		(&httputil.ReverseProxy{Rewrite: func(out *httputil.ProxyRequest) { out.Out.URL.Host = address }}).ServeHTTP(w, r)
		return
	}
	there, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, received, err := http.NewResponseController(w).Hijack() // before the answer, after which the client sends
	if err != nil {
		return
	}
	defer here.Close()
	_, _ = io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
	var copying sync.WaitGroup
	copying.Go(func() {
		_, _ = io.Copy(there, received)
		_ = there.(*net.TCPConn).CloseWrite()
	})
	_, _ = io.Copy(here, there)
	_ = here.Close()
	copying.Wait()
}
