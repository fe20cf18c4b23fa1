package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/kafka"
	millraceredis "github.com/millrace-io/millrace/plugins/redis"
)

// certificates are the files of a server and of its clients. Each side trusts the authority of the other.
type certificates struct {
	t                *testing.T
	server, serverCA string // the key and the certificate of the server in one file, and who signs those of clients
	client           setting.TLS
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	dir := t.TempDir()
	c := &certificates{t: t, server: filepath.Join(dir, "server.pem"), serverCA: filepath.Join(dir, "clients.pem"), client: setting.TLS{
		Enabled: true, CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}}
	a := pipelinetest.NewAuthority(t)
	c.rotateServer(a)
	c.rotateClient(a)
	return c
}

func (c *certificates) rotateServer(a *pipelinetest.Authority) {
	key, cert := a.Issue("server", time.Now().Add(time.Hour))
	pipelinetest.Replace(c.t, c.server, slices.Concat(key, cert))
	pipelinetest.Replace(c.t, c.serverCA, a.PEM)
}

// rotateClient leaves the files half written for a while.
func (c *certificates) rotateClient(a *pipelinetest.Authority) {
	key, cert := a.Issue("client", time.Now().Add(time.Hour))
	pipelinetest.Replace(c.t, c.client.CAFile, a.PEM[:len(a.PEM)/2])
	pipelinetest.Replace(c.t, c.client.CertFile, cert)
	pipelinetest.Replace(c.t, c.client.KeyFile, key)
	pipelinetest.Replace(c.t, c.client.CAFile, a.PEM)
}

// The server takes certificates of another authority, and ends all connections, while messages are
// published and handled. Clients with the old certificates are refused until their files are replaced.
func TestCertificatesOfRedisAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Redis)
	tier.Address(t, servers.Redis) // so the program is here
	c := newCertificates(t)
	socket := filepath.Join(t.TempDir(), "s") // of the test, which has no certificate
	n := newNode(t, "redis-server", func(o *redis.Options) { o.Network, o.Addr = "unix", socket })
	n.args = []string{"--port", "0", "--tls-port", n.port(), "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--unixsocket", socket, "--tls-auth-clients", "yes",
		"--tls-cert-file", c.server, "--tls-key-file", c.server, "--tls-ca-cert-file", c.serverCA}
	n.run()

	p := millraceredis.New()
	settings := p.Settings().(*millraceredis.Config)
	settings.Addrs, settings.TLS = []string{n.addr}, c.client
	l := startLoad(t, p, p.Source("load", "load"), p.Sink("load"))
	for range 3 {
		l.more()
		a := pipelinetest.NewAuthority(t)
		c.rotateServer(a)
		n.must("CONFIG", "SET", "tls-cert-file", c.server, "tls-key-file", c.server, "tls-ca-cert-file", c.serverCA)
		n.must("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		c.rotateClient(a)
	}
	l.stop()
	l.reaches("each message is acknowledged", func() bool { // the acknowledgement comes after the handler
		pending, err := n.XPending(t.Context(), "load", "load").Result()
		require.NoError(t, err)
		return pending.Count == 0
	})
}

// The broker takes certificates of another authority while records are published and handled. Its clients
// lose their connections, because for a while they log in with a wrong password, and open others.
func TestCertificatesOfKafkaAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka)
	tier.Address(t, servers.Kafka) // so the program is here
	c := newCertificates(t)
	addr, admin, _ := startGuardedKafka(t, &servers.Guard{Keystore: c.server, Truststore: c.serverCA, Reauth: time.Second})
	allowLoad(t, admin)
	_, err := admin.CreateTopic(t.Context(), 2, 1, nil, "load-tls")
	require.NoError(t, err)

	var mu sync.Mutex
	current, sent := theirPassword, map[string]int{} // by password, how often a connection got it
	p := kafka.New()
	settings := p.Settings().(*kafka.Config)
	settings.Brokers, settings.CreateTopics, settings.TLS = []string{addr}, false, c.client
	settings.SASL = kafka.SASL{Mechanism: "SCRAM-SHA-512", User: "millrace", Password: setting.NewProvidedSecret(current, func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		sent[current]++
		return current, nil
	})}
	l := startLoad(t, p, p.Source("load-tls", "load-tls"), p.Sink("load-tls"))
	for range 3 {
		l.more()
		a := pipelinetest.NewAuthority(t)
		c.rotateServer(a)
		for key, file := range map[string]string{"keystore": c.server, "truststore": c.serverCA} { // the broker reads it again
			key = "listener.name.guard.ssl." + key + ".location"
			altered, err := admin.AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{{Name: key, Value: &file}}, 1)
			require.NoError(t, err)
			require.NoError(t, altered[0].Err, altered[0].ErrMessage)
		}
		mu.Lock()
		current = "wrong"
		clear(sent)
		mu.Unlock()
		l.reaches("publisher and reader are refused", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return sent["wrong"] >= 2
		})
		c.rotateClient(a)
		mu.Lock()
		current = theirPassword
		mu.Unlock()
	}
	l.stop()
}
