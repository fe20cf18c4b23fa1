package redis

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The settings of a domain reach its readers. A zero means the setting of all readers.
func TestReadersHaveTheSettingsOfTheirDomain(t *testing.T) {
	t.Parallel()
	shared := poll.DefaultConfig()
	shared.Concurrency, shared.BatchSize, shared.PollInterval, shared.MinIdle = 4, 20, time.Second, time.Minute
	d := DomainConfig{Prefix: "scan:events", Shards: 2}
	readers, err := shareOut(d, pipeline.Flow{}, shared)
	require.NoError(t, err)
	require.Equal(t, []poll.Options{{Config: shared, Stream: "scan:events:0"}, {Config: shared, Stream: "scan:events:1"}}, readers)
	d.Concurrency, d.BatchSize, d.PollInterval, d.Fields = 3, 50, 20*time.Millisecond, true
	readers, err = shareOut(d, pipeline.Flow{}, shared)
	require.NoError(t, err)
	own := shared
	own.Concurrency, own.BatchSize, own.PollInterval = 3, 50, 20*time.Millisecond
	require.Equal(t, poll.Options{Config: own, Stream: "scan:events:1", Fields: true}, readers[1])
	readers, err = shareOut(d, pipeline.Flow{Window: 9, MaxInFlight: 5}, shared)
	require.NoError(t, err)
	require.Equal(t, []int{3, 2}, []int{readers[0].Concurrency, readers[1].Concurrency}, "the route's limit counts")
}

// Flat fields are one message: at its first delivery, again after a nack, and for a tail. An entry
// with a message is read as in every stream.
func TestEntriesWithFlatFields(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p, name, _ := trims(t, c, func(cfg *Config) {
			cfg.Trim, cfg.Redelivery = false, pipeline.Backoff{First: time.Millisecond, Max: time.Millisecond}
		})
		p.cfg.Domains = []DomainConfig{{Prefix: name, Shards: 1, Group: "own", Fields: true}}
		shard := p.cfg.Domains[0].Stream(0)
		add := func(values ...any) string {
			id, err := c.XAdd(t.Context(), &goredis.XAddArgs{Stream: shard, Values: values}).Result()
			require.NoError(t, err)
			return id
		}
		flat := add("seq", "7", "job_id", "a\xff")
		withMessage := add("message", "m", "uuid", "u", "seq", "8")
		open := func(from pipeline.Source) <-chan *message.Message {
			sub, err := from.Open(t.Context(), pipeline.Flow{Order: pipeline.OrderKey})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, sub.Close()) })
			messages, err := sub.Subscribe(t.Context(), "")
			require.NoError(t, err)
			return messages
		}
		check := func(m *message.Message, id, uuid, payload string) {
			o := pipeline.DeliveryFrom(m.Context())
			require.NoError(t, o.Malformed)
			require.Equal(t, []string{shard + "@" + id, uuid, payload}, []string{o.Position, m.UUID, string(m.Payload)})
		}
		for what, messages := range map[string]<-chan *message.Message{"route": open(p.Domain(name).Source()), "tail": open(p.Tail(shard, true))} {
			m := redistest.Receive(t, messages)
			check(m, flat, flat, `{"job_id":"a\udcff","seq":"7"}`)
			if what == "route" {
				m.Nack()
				m = redistest.ReceiveAck(t, messages)
				check(m, flat, flat, `{"job_id":"a\udcff","seq":"7"}`)
				require.EqualValues(t, 2, pipeline.DeliveryFrom(m.Context()).Delivered)
			}
			check(redistest.ReceiveAck(t, messages), withMessage, "u", "m")
		}
		add("seq", "9")
		p.cfg.Domains[0].Fields = false
		m := redistest.Receive(t, open(p.Tail(shard, true)))
		require.Equal(t, "missing_message", m.Metadata.Get(pipeline.MetaMalformed))
	})
}
