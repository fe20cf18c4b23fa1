package telemetry_test

import (
	"crypto/tls"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// Spans reach collectors through the proxy of the environment, and doctor connects to them in the same way. It is not
// parallel, because a process that it starts has the closed listeners of other tests for a moment.
func TestTheProxyOfTheEnvironmentIsUsed(t *testing.T) {
	plain, secured := newCollector(t), newCollector(t)
	a := pipelinetest.NewAuthority(t)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pipelinetest.Replace(t, ca, a.PEM)
	key, cert := a.Issue("secured.invalid", time.Now().Add(time.Hour))
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(secured.Config.Handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	hosts := map[string]string{"plain.invalid:80": plain.Listener.Addr().String(), "secured.invalid:443": server.Listener.Addr().String()}
	pipelinetest.BehindProxy(t, hosts, func() error {
		var errs []error
		for _, address := range []string{"http://plain.invalid", "https://secured.invalid"} {
			c := plain
			if strings.HasPrefix(address, "https:") {
				c = secured
				require.NoError(t, os.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", ca)) //nolint:usetesting // it ends with this process
			}
			cfg := telemetry.Config{Listen: "127.0.0.1:0", OTLPEndpoint: address, SampleRatio: 1, ServiceName: "mill"}
			provider, flush, err := tracing(t, cfg)
			require.NoError(t, err)
			_, span := provider.Tracer("test").Start(t.Context(), "a span behind a proxy")
			span.End()
			require.NoError(t, flush(t.Context()))
			if _, body := c.received(); !strings.Contains(body, "a span behind a proxy") {
				errs = append(errs, errors.New("no span in "+address))
			}
			p := telemetry.New()
			*p.Settings().(*telemetry.Config) = cfg
			for _, check := range examine(t, pipeline.Env{}, p) {
				if strings.HasPrefix(check.Name, "traces ") && (check.Level != operate.OK || !strings.Contains(check.Text, "through the proxy")) {
					errs = append(errs, errors.New(check.String()))
				}
			}
		}
		return errors.Join(errs...)
	})
}
