package streams

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The backlog of a kind has each of its streams, in a process where the Manager has no client. Neither the wake-up
// stream nor that of another kind is one of them.
func TestTheBacklogOfElasticStreams(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, one redistest.Server) { // miniredis counts what was read as waiting
		s := newServer(t, one)
		in := newInstance(t, s, "a", newActiveSet("1", "2", "3"), still())
		for id, n := range map[string]int{"1": 4, "2": 7, "3": 1} {
			_, _, err := in.EnqueueBatch(t.Context(), id, entries(0, n))
			require.NoError(t, err)
		}
		kind := in.opts.Kind
		require.NoError(t, s.client.XAdd(t.Context(), &redis.XAddArgs{Stream: kind.StreamPrefix + "4:other", Values: []string{"a", "b"}}).Err())
		require.NoError(t, s.client.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: kind.Group("2"), Consumer: "c", Streams: []string{kind.Stream("2"), ">"}, Count: 2}).Err())

		closed := 0
		elsewhere := NewManager(Options{
			Kind: kind, Config: in.opts.Config, Client: func() redis.UniversalClient { return nil }, Activations: newActiveSet(), Instance: "command",
			Connect: func(context.Context) (redis.UniversalClient, func(), error) {
				return s.client, func() { closed++ }, nil
			},
		})
		got, err := elsewhere.Source().(operate.Measured).Backlog(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int64{10, 2}, []int64{*got.Waiting, *got.InFlight})
		require.Equal(t, 3, got.Streams.Total)
		var order []string
		for _, one := range got.Streams.Worst {
			order = append(order, one.Stream)
		}
		require.Equal(t, []string{kind.Stream("2"), kind.Stream("1"), kind.Stream("3")}, order)
		require.Equal(t, 1, closed)

		elsewhere.opts.Connect = nil
		_, err = elsewhere.Source().(operate.Measured).Backlog(t.Context())
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
	})
}
