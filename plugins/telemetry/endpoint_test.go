package telemetry

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The line about a collector that does not answer names the endpoint that the exporter uses.
func TestTheEndpointThatIsNamedIsTheOneInUse(t *testing.T) {
	t.Parallel()
	env := map[string]string{envEndpoint: "http://127.0.0.1:1/all"}
	for _, want := range []string{"http://127.0.0.1:1/all", "http://127.0.0.1:2/traces"} {
		e, err := exportOf(Config{OTLPEndpoint: "http://127.0.0.1:3"}, func(name string) string { return env[name] })
		require.NoError(t, err)
		require.Equal(t, want, e.endpoint.String())
		env[envTracesEndpoint] = "http://127.0.0.1:2/traces"
	}
}
