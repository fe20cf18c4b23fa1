package redis

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
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
			case <-time.After(2 * time.Minute):
				require.FailNow(t, "no message")
				return nil
			}
		}
		// The source that ends has what was there when it was opened.
		ending, err := p.Tail(stream, true).(app.Ender).ToEnd().Open(t.Context(), pipeline.Flow{})
		require.NoError(t, err)
		late := add("later")
		ended, err := ending.Subscribe(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, "old", string(next(ended).Payload))
		require.Nil(t, next(ended), "the channel is closed")
		require.NoError(t, ending.Close())
		require.NoError(t, c.XDel(t.Context(), stream, late).Err())
		newest, oldest := open(false), open(true)
		m := next(oldest)
		require.Equal(t, "old", string(m.Payload))
		require.Equal(t, stream+"@"+id, pipeline.DeliveryFrom(m.Context()).String())
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

// A tail says which server it waits for, and does not wait for long.
func TestTailReportsThatItWaits(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	code := app.Main(t.Context(), app.Options{
		Name: "shop", Plugins: []pipeline.Plugin{New()}, Args: []string{"tail", "a:b"}, Stdout: io.Discard, Stderr: &errs,
		Environ: []string{"SHOP__COMMAND_WAIT=300ms", "SHOP__PLUGINS__REDIS__ADDRS=127.0.0.1:1"},
	})
	require.Equal(t, app.ExitUnavailable, code, &errs)
	require.Contains(t, errs.String(), `"msg":"waiting for redis","address":"127.0.0.1:1"`)
	require.Contains(t, errs.String(), "stopped waiting after 300ms (command_wait)")
}
