package console_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/console"
)

// line is that of a user in a file of htpasswd.
func line(t testing.TB, name, password string) []byte {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)
	return []byte(name + ":" + string(hash) + "\n")
}

// People look at pages, each time over a new connection, while one user after the other takes the place of the one before, and
// the server gets certificates. Nobody is refused before the user is removed, and after that at once, although the
// console remembers passwords that were right.
func TestUsersAndTheCertificateAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	authority, dir := pipelinetest.NewAuthority(t), t.TempDir()
	users := filepath.Join(dir, "users")
	files := setting.ServerTLS{CertFile: filepath.Join(dir, "server.pem"), KeyFile: filepath.Join(dir, "server.key")}
	certify := func(n int) {
		key, cert := authority.Issue(fmt.Sprint("server ", n), time.Now().Add(time.Hour))
		pipelinetest.Replace(t, files.KeyFile, key)
		pipelinetest.Replace(t, files.CertFile, cert)
	}
	name := func(n int) string { return fmt.Sprint("ann", n) }
	last := line(t, name(0), "open")
	pipelinetest.Replace(t, users, last)
	certify(0)
	r := start(t, func(c *console.Config) { c.UsersFile, c.TLS = users, files }, page(loading("secret", pages.Text("inside"), nil)))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM)
	client := &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
	// try returns the status of an answer, and the name in the certificate of the server.
	try := func(name, password string) (status int, server string, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(r.base, "http:", "https:", 1)+"/tried", http.NoBody)
		if err != nil {
			return 0, "", err
		}
		request.SetBasicAuth(name, password)
		answer, err := client.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer answer.Body.Close()
		_, err = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode, answer.TLS.PeerCertificates[0].Subject.CommonName, err
	}
	is := func(want int, server, name, password string) {
		t.Helper()
		status, named, err := try(name, password)
		require.NoError(t, err)
		require.Equal(t, want, status)
		require.Equal(t, server, named)
	}
	var user atomic.Int64
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		name := name(int(user.Load()))
		status, _, err := try(name, "open")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%s was refused with status %d", name, status)
		}
		return err
	})
	for n := 1; n <= 3; n++ {
		load.More()
		next := line(t, name(n), "open")
		pipelinetest.Replace(t, users, slices.Concat(last, next))
		certify(n)
		user.Store(int64(n))
		load.More()                                        // nobody is the one before any more
		pipelinetest.Replace(t, users, next[:len(next)/2]) // half written
		is(http.StatusOK, fmt.Sprint("server ", n), name(n-1), "open")
		pipelinetest.Replace(t, users, next)
		is(http.StatusUnauthorized, fmt.Sprint("server ", n), name(n-1), "open")
		last = next
	}
	load.More()
	load.Stop()
	pipelinetest.Replace(t, users, line(t, name(3), "another"))
	is(http.StatusUnauthorized, "server 3", name(3), "open")
	is(http.StatusOK, "server 3", name(3), "another")
	require.Contains(t, r.log.String(), "file can't be read again, so what it had before stays in use")
}

// A user who was removed from the file may still have a role. The start goes on, and the log says so.
func TestARoleOfNobodyIsAWarning(t *testing.T) {
	t.Parallel()
	users := filepath.Join(t.TempDir(), "users")
	pipelinetest.Replace(t, users, line(t, "ann", "open"))
	r := start(t, func(c *console.Config) {
		c.UsersFile, c.Roles = users, map[string]operate.Role{"ann": operate.Admin, "bob": operate.Operator}
	})
	require.Contains(t, r.log.String(), "roles names nobody of users_file\" plugin=console user=bob")
	require.NotContains(t, r.log.String(), "user=ann")
}
