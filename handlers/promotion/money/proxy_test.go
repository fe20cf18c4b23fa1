package money_test

import (
	"crypto/tls"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// The API is reached through the proxy of the environment. A proxy that can't reach it has sent nothing.
func TestTheProxyOfTheEnvironmentIsUsed(t *testing.T) {
	t.Parallel()
	sim, err := simulator.New(simulator.Config{})
	require.NoError(t, err)
	require.NoError(t, sim.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, sim.Stop(t.Context())) })
	behind, err := url.Parse(sim.URL())
	require.NoError(t, err)
	authority := pipelinetest.NewAuthority(t)
	key, cert := authority.Issue("api.invalid", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(behind))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pipelinetest.Replace(t, ca, authority.PEM)
	charge := func(address string) money.Answer {
		cfg := oncehttp.DefaultConfig()
		cfg.URL, cfg.CAFile, cfg.CallTimeout, cfg.ConnectTimeout = address, ca, time.Minute, time.Minute
		client, err := money.New(cfg, nil)
		require.NoError(t, err)
		defer client.Close()
		return client.Charge(t.Context(), money.Charge{
			Operation: money.Operation{Name: "chargePoint", Path: "/v1/points/charges"}, Key: "POINT:1:1",
			Body: []byte(`{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1}`),
		})
	}
	pipelinetest.BehindProxy(t, map[string]string{"api.invalid:443": server.Listener.Addr().String()}, func() error {
		unknown := charge("https://unknown.invalid")
		require.Equal(t, money.NotSent, unknown.Class, "%v", unknown.Err)
		a := charge("https://api.invalid")
		if a.Err == nil {
			require.Equal(t, money.Paid, a.Class)
		}
		return a.Err
	})
}
