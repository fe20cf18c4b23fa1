package redis

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A tail shows entries, old or new ones, and leaves the stream and its groups unchanged.
func TestTail(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		stream := redistest.Stream(t, c)
		p := New()
		p.cfg.Addrs = []string{c.(*goredis.Client).Options().Addr}
		_, err := p.Tail(stream, true).Open(t.Context(), pipeline.Flow{})
		require.ErrorContains(t, err, stream+" is no stream")
		add := func(payload string) string {
			e := entry.Entry{Key: "k", UUID: payload, Message: []byte(payload)}
			id, err := c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: e.Values()}).Result()
			require.NoError(t, err)
			return id
		}
		id := add("old")
		open := func(oldest bool) <-chan *message.Message {
			s, err := p.Tail(stream, oldest).Open(t.Context(), pipeline.Flow{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			messages, err := s.Subscribe(t.Context(), "")
			require.NoError(t, err)
			return messages
		}
		next := func(from <-chan *message.Message) *message.Message {
			select {
			case m := <-from:
				return m
			case <-time.After(30 * time.Second):
				require.FailNow(t, "no message")
				return nil
			}
		}
		newest, oldest := open(false), open(true)
		m := next(oldest)
		require.Equal(t, "old", string(m.Payload))
		require.Equal(t, stream+"@"+id, pipeline.OriginFrom(m.Context()).String())
		add("new")
		require.Equal(t, "new", string(next(oldest).Payload))
		m = next(newest)
		require.Equal(t, "new", string(m.Payload))
		require.Equal(t, "k", m.Metadata[pipeline.MetaKey])
		groups, err := c.XInfoGroups(t.Context(), stream).Result()
		require.NoError(t, err)
		require.Empty(t, groups)
		require.EqualValues(t, 2, c.XLen(t.Context(), stream).Val())
	})
}
