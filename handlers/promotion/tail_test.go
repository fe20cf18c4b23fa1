package promotion

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
)

// The streams of promotions may be on another server than plugins.redis.
func TestTailReadsTheServerOfTheStreams(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	const stream = "campaign-promotion-stream:POINT:1"
	_, err := server.XAdd(stream, "*", []string{"message", "{}"})
	require.NoError(t, err)
	p := New(kafka.New(), redis.New(), deadletter.New(kafka.New()))
	require.Nil(t, p.Tail(stream, true), "plugins.redis has them")
	own := redis.DefaultClientConfig()
	own.Addrs = []string{server.Addr()}
	p.config.Stream.Redis = &own
	require.Nil(t, p.Tail("orders", true), "a stream of another plugin")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := p.Tail(stream, true).Open(ctx, pipeline.Flow{})
	require.NoError(t, err)
	messages, err := s.Subscribe(t.Context(), "")
	require.NoError(t, err)
	select {
	case m := <-messages:
		require.Equal(t, "{}", string(m.Payload))
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the stream's own server was not read")
	}
	require.NoError(t, s.Close())
}
