package promotion

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
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

// One stream starts at most a quarter of the payouts that the process may start. A slow promotion
// leaves the rest to others.
func TestAStreamHasAQuarterOfTheStarts(t *testing.T) {
	t.Parallel()
	p := &Plugin{config: DefaultConfig(), redis: redis.New(), run: newResources(new(Config))}
	p.config.MoneyAPI.Concurrency = 64
	require.Equal(t, startsPerSlot*64/4, p.streamOptions(pointType()).Ahead)
	p.config.MoneyAPI.Concurrency = 1
	require.Equal(t, 1, p.streamOptions(pointType()).Ahead)
}
