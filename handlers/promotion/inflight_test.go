package promotion

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecordsPaidOnTheKafkaRouteFindASlot: no more records are in flight than the client has slots.
func TestRecordsPaidOnTheKafkaRouteFindASlot(t *testing.T) {
	t.Parallel()
	p := &Plugin{config: DefaultConfig()}
	p.config.Stream.Enabled = true
	require.Equal(t, maxAcceptInFlight, p.acceptInFlight())
	p.config.Stream.Enabled = false
	require.Equal(t, p.config.MoneyAPI.Concurrency, p.acceptInFlight())
	p.config.MoneyAPI.Concurrency = 10_000
	require.Equal(t, maxAcceptInFlight, p.acceptInFlight())
}
