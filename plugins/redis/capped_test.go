package redis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A stream without a group is limited by bytes, because the sender of a message chooses its size. The
// newest entries stay, also if one of them is larger than the limit.
func TestACappedStreamIsLimitedByBytes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		const entries, most = 1000, 64 << 10
		client := s.Client(t)
		stream := redistest.Stream(t, client)
		p := New()
		p.Settings().(*Config).Addrs = []string{s.Addr}
		pipelinetest.Start(t, p)
		sink := p.CappedSink(stream, entries, most)
		published := 0
		publish := func(sizes ...int) {
			t.Helper()
			msgs := make([]*message.Message, len(sizes))
			for i, size := range sizes {
				published++
				msgs[i] = message.NewMessage(fmt.Sprint(published), []byte(strings.Repeat("x", size)))
			}
			require.NoError(t, sink.Publish(t.Context(), msgs...))
		}
		sizes := func() (list []int, bytes int) {
			t.Helper()
			seen := map[any]bool{}
			for _, e := range client.XRange(t.Context(), stream, "-", "+").Val() {
				payload, ok := e.Values["message"].(string)
				require.True(t, ok, e.Values)
				bytes += len(payload)
				if id := e.Values["uuid"]; id == nil || !seen[id] { // a server that answers late may have a message twice
					seen[id] = true
					list = append(list, len(payload))
				}
			}
			return list, bytes
		}
		repeat := func(n, size int) (list []int) {
			for range n {
				list = append(list, size)
			}
			return list
		}

		publish(repeat(300, 100)...)
		list, _ := sizes()
		require.Len(t, list, 300, "small entries are all there")
		publish(repeat(40, 8<<10)...)
		list, bytes := sizes()
		require.Equal(t, repeat(len(list), 8<<10), list, "the oldest ones are gone")
		require.LessOrEqual(t, bytes, most+8<<10)
		require.Greater(t, bytes, most/2, "and no more than necessary")

		publish(2 * most)
		list, _ = sizes()
		require.Equal(t, 2*most, list[len(list)-1], "a large one is not lost")
		require.LessOrEqual(t, len(list), 2)
		publish(10, 20)
		list, _ = sizes()
		require.Equal(t, []int{10, 20}, list[len(list)-2:])

		// Another client has added an entry, and an operator has deleted the newest one.
		require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", "foreign"}}).Err())
		newest := client.XRevRangeN(t.Context(), stream, "+", "-", 1).Val()
		require.NoError(t, client.XDel(t.Context(), stream, newest[0].ID).Err())
		foreign := func(n, size int) {
			t.Helper()
			for range n {
				require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", strings.Repeat("f", size)}}).Err())
			}
		}
		// And it has added many, whose bytes count, or even more than the stream should have.
		for _, n := range []int{0, 9, 10, 25, entries + 200} {
			foreign(n, 10)
			publish(repeat(100, 8<<10)...)
			list, bytes = sizes()
			require.Equal(t, repeat(len(list), 8<<10), list, "after %d", n)
			require.LessOrEqual(t, bytes, most+8<<10, "after %d", n)
			require.Greater(t, bytes, most/2, "after %d", n)
		}
		foreign(20, 8<<10)
		publish(10)
		_, bytes = sizes()
		require.LessOrEqual(t, bytes, most+8<<10, "the bytes of other clients")

		// After that many entries of others a new count of the bytes begins. The ones before have no part in it.
		require.NoError(t, client.Del(t.Context(), stream).Err())
		publish(repeat(most/(8<<10)+1, 8<<10)...)
		publish(repeat(50, 10)...)
		foreign(entries, 10)
		publish(10)
		list, _ = sizes()
		require.LessOrEqual(t, len(list), entries+1)

		// Their field "written" may have any value.
		for _, odd := range []string{"nan", "-nan", "inf", "-5", "1e300", "0x10", "1.5", strings.Repeat("9", 400), "today"} {
			require.NoError(t, client.Del(t.Context(), stream).Err())
			publish(repeat(3, 10)...)
			require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", "foreign", "written", odd}}).Err())
			publish(repeat(3, 10)...)
			list, _ = sizes()
			require.Equal(t, []int{10, 10, 10, len("foreign"), 10, 10, 10}, list, odd)
		}
	})
}
