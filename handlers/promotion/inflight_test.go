package promotion

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// No more records are in flight on the Kafka route than payouts may be started.
func TestRecordsPaidOnTheKafkaRouteMayBeStarted(t *testing.T) {
	t.Parallel()
	p := &Plugin{config: DefaultConfig()}
	p.config.Stream.Enabled = true
	require.Equal(t, maxAcceptInFlight, p.acceptInFlight())
	p.config.Stream.Enabled = false
	require.Equal(t, 2*p.config.MoneyAPI.Concurrency, p.acceptInFlight())
	p.config.MoneyAPI.Concurrency = 10_000
	require.Equal(t, maxAcceptInFlight, p.acceptInFlight())
}
