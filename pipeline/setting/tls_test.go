package setting_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// party has the certificate files of a client or a server, and follows them.
type party struct {
	ca, cert, key string
	logged        *strings.Builder
}

func newParty(t *testing.T) *party {
	t.Helper()
	dir := t.TempDir()
	return &party{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), &strings.Builder{}}
}

// rotate gives the party a certificate of an authority, and lets it trust that authority.
func (p *party) rotate(t *testing.T, a *pipelinetest.Authority, name string) {
	t.Helper()
	key, cert := a.Issue(name, time.Now().Add(time.Hour))
	pipelinetest.Replace(t, p.ca, a.PEM)
	pipelinetest.Replace(t, p.cert, cert)
	pipelinetest.Replace(t, p.key, key)
}

func (p *party) log() *slog.Logger { return slog.New(slog.NewTextHandler(p.logged, nil)) }

func (p *party) tls() setting.TLS {
	return setting.TLS{Enabled: true, CAFile: p.ca, CertFile: p.cert, KeyFile: p.key}
}

// listen starts a TLS server with the certificate of p, which names each client that a trusted authority
// has signed.
func (p *party) listen(t *testing.T, trusted func() *x509.CertPool) (address string) {
	t.Helper()
	own, err := setting.ServerTLS{CertFile: p.cert, KeyFile: p.key}.Live("server", p.log())
	require.NoError(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		c := own.Clone()
		c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, trusted()
		return c, nil
	}})
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				if secure := conn.(*tls.Conn); secure.Handshake() == nil {
					_, _ = io.WriteString(conn, secure.ConnectionState().PeerCertificates[0].Subject.CommonName)
				}
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		serving.Wait()
	})
	return l.Addr().String()
}

// greet opens a connection and returns the name that the server has read in the client's certificate, and
// the one that the client has read in the server's.
func greet(t *testing.T, live *setting.LiveTLS, address string) (client, server string, err error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	secure, err := live.Client(t.Context(), conn, address)
	if err != nil {
		return "", "", err
	}
	defer secure.Close()
	name, err := io.ReadAll(secure)
	return string(name), secure.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName, err
}

// Both sides get certificates of another authority while connections are made. Each connection has those
// of its moment, and a side that has not changed refuses the other one.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	authority := pipelinetest.NewAuthority(t)
	client, server := newParty(t), newParty(t)
	client.rotate(t, authority, "client 0")
	server.rotate(t, authority, "server 0")
	var mu sync.Mutex
	trusted := authority
	address := server.listen(t, func() *x509.CertPool {
		mu.Lock()
		defer mu.Unlock()
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(trusted.PEM)
		return pool
	})
	live, err := client.tls().Live("client", client.log())
	require.NoError(t, err)
	same := live.Config(t.Context())
	require.Same(t, same, live.Config(t.Context()))
	for n, name := range []string{"0", "1", "2", "3"} {
		if n > 0 {
			next := pipelinetest.NewAuthority(t)
			mu.Lock()
			trusted = next
			mu.Unlock()
			server.rotate(t, next, "server "+name)
			_, _, err := greet(t, live, address)
			var unknown x509.UnknownAuthorityError
			require.ErrorAs(t, err, &unknown, "the client trusts the old authority")
			client.rotate(t, next, "client "+name)
		}
		gotClient, gotServer, err := greet(t, live, address)
		require.NoError(t, err)
		require.Equal(t, "client "+name, gotClient)
		require.Equal(t, "server "+name, gotServer)
	}
	require.NotSame(t, same, live.Config(t.Context()))
	require.Equal(t, 3, strings.Count(client.logged.String(), "certificates were read again and have changed"), "%s", client.logged)
}

// An address with a number is checked, too: a certificate for another one is refused.
func TestTheAddressOfAServerIsChecked(t *testing.T) {
	t.Parallel()
	authority := pipelinetest.NewAuthority(t)
	client, server := newParty(t), newParty(t)
	client.rotate(t, authority, "client")
	server.rotate(t, authority, "server")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM)
	address := server.listen(t, func() *x509.CertPool { return pool })
	live, err := client.tls().Live("client", nil)
	require.NoError(t, err)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	_, err = live.Client(t.Context(), conn, "127.0.0.2:1")
	var other x509.HostnameError
	require.ErrorAs(t, err, &other)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestTheLastGoodCertificatesStayInUse(t *testing.T) {
	t.Parallel()
	authority := pipelinetest.NewAuthority(t)
	cut := func(text []byte) []byte { return text[:len(text)-20] }
	for name, spoil := range map[string]func(p *party) (warned string){
		"half of the authorities": func(p *party) string {
			pipelinetest.Replace(t, p.ca, cut(slices.Concat(authority.PEM, pipelinetest.NewAuthority(t).PEM)))
			return "ends within a block"
		},
		"no authority": func(p *party) string {
			pipelinetest.Replace(t, p.ca, nil)
			return "contains no certificate"
		},
		"half of the chain": func(p *party) string {
			key, cert := authority.Issue("new", time.Now().Add(time.Hour))
			pipelinetest.Replace(t, p.key, key)
			pipelinetest.Replace(t, p.cert, cut(slices.Concat(cert, authority.PEM)))
			return "ends within a block"
		},
		"half of the key": func(p *party) string {
			key, cert := authority.Issue("new", time.Now().Add(time.Hour))
			pipelinetest.Replace(t, p.cert, cert)
			pipelinetest.Replace(t, p.key, cut(key))
			return "ends within a block"
		},
		"a certificate without its key": func(p *party) string {
			_, cert := authority.Issue("new", time.Now().Add(time.Hour))
			pipelinetest.Replace(t, p.cert, cert)
			return "does not match"
		},
		"one that has ended": func(p *party) string {
			key, cert := authority.Issue("new", time.Now().Add(-time.Minute))
			pipelinetest.Replace(t, p.key, key)
			pipelinetest.Replace(t, p.cert, cert)
			return "has ended at"
		},
		"no key": func(p *party) string {
			require.NoError(t, os.Remove(p.key))
			return "no such file"
		},
		"a huge file": func(p *party) string {
			pipelinetest.Replace(t, p.ca, slices.Repeat(authority.PEM, 10_000))
			return "must have at most"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParty(t)
			p.rotate(t, authority, "old")
			client, err := p.tls().Live("plugins.redis.tls", p.log())
			require.NoError(t, err)
			server, err := setting.ServerTLS{CertFile: p.cert, KeyFile: p.key}.Live("plugins.web.tls", nil)
			require.NoError(t, err)
			current := func() (ofClient, ofServer string) {
				pair, err := server.GetCertificate(&tls.ClientHelloInfo{})
				require.NoError(t, err)
				return client.Config(t.Context()).Certificates[0].Leaf.Subject.CommonName, pair.Leaf.Subject.CommonName
			}
			want := spoil(p)
			for range 100 {
				ofClient, ofServer := current()
				require.Equal(t, []string{"old", "old"}, []string{ofClient, ofServer})
			}
			require.Equal(t, 1, strings.Count(p.logged.String(), "the last ones stay in use"), "%s", p.logged)
			require.Contains(t, p.logged.String(), want)
			require.Contains(t, p.logged.String(), "of=plugins.redis.tls")
			require.NotContains(t, p.logged.String(), "PRIVATE")
			p.rotate(t, authority, "new")
			ofClient, ofServer := current()
			require.Equal(t, []string{"new", "new"}, []string{ofClient, ofServer})
		})
	}
}

func TestWrongCertificateFilesAreMistakesOfTheirSettings(t *testing.T) {
	t.Parallel()
	authority := pipelinetest.NewAuthority(t)
	p := newParty(t)
	p.rotate(t, authority, "name")
	for name, c := range map[string]struct {
		err  error
		path string
	}{
		"no authorities":        {setting.TLS{Enabled: true, CAFile: "/gone"}.Validate(), "ca_file"},
		"a key as authority":    {setting.TLS{Enabled: true, CAFile: p.key}.Validate(), "ca_file"},
		"no certificate":        {setting.TLS{Enabled: true, CertFile: "/gone", KeyFile: p.key}.Validate(), "cert_file"},
		"no key":                {setting.TLS{Enabled: true, CertFile: p.cert, KeyFile: "/gone"}.Validate(), "key_file"},
		"a certificate alone":   {setting.TLS{Enabled: true, CertFile: p.cert}.Validate(), "cert_file"},
		"a server without one":  {setting.ServerTLS{KeyFile: p.key}.Validate(), "cert_file"},
		"a server without keys": {setting.ServerTLS{CertFile: p.cert, KeyFile: "/gone"}.Validate(), "key_file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			field, ok := errors.AsType[*setting.FieldError](c.err)
			require.True(t, ok, "%v", c.err)
			require.Equal(t, c.path, field.Path)
		})
	}
	require.NoError(t, p.tls().Validate())
	require.NoError(t, setting.TLS{CAFile: "/gone"}.Validate(), "without encryption the files are not read")
	system, err := setting.TLS{Enabled: true}.Live("", nil)
	require.NoError(t, err)
	require.NotNil(t, system.Config(t.Context()), "the authorities of the system")
	var none *setting.LiveTLS
	require.Nil(t, none.Config(t.Context()))
}
