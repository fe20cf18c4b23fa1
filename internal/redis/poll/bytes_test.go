package poll

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A reader has at most maxHeldBytes in flight, and one entry more, however many entries its
// concurrency and its batch size allow. This holds for new entries, for those of another consumer,
// and for those of an earlier process with the same name.
func TestTheBytesInFlightAreLimited(t *testing.T) {
	const n, size = 40, 1 << 20
	for name, owner := range map[string]string{"new": "", "claimed": "another", "own": "me", "taken over": "former"} {
		t.Run(name, func(t *testing.T) {
			redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
				r := redistest.NewRig(t, s)
				payload := strings.Repeat("x", size)
				add := func(n int) {
					for i := range n {
						require.NoError(t, r.Client.XAdd(t.Context(), &goredis.XAddArgs{Stream: r.Stream, Values: []any{"message", payload, "uuid", fmt.Sprint(i)}}).Err())
					}
				}
				out := make(chan *message.Message, n)
				o := Options{Stream: r.Stream, Group: redistest.Group, Consumer: "me", TakeOver: name == "taken over"}
				o.Concurrency, o.BatchSize, o.PollInterval, o.MinIdle = 64, 64, 10*time.Millisecond, 2*time.Second
				if name == "claimed" {
					o.ReclaimInterval = 10 * time.Millisecond
				}
				rd := NewReader(r.Client, o, out, nil, nil)
				t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					_ = rd.Drain(ctx) // a failed test leaves messages in flight
					<-rd.Done()
				})
				if owner == "" { // the first entry tells the size
					add(1)
					rd.Start()
					redistest.ReceiveAck(t, out)
					r.NothingPending()
					add(n)
				} else {
					add(n)
					require.NoError(t, r.Client.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: redistest.Group, Consumer: owner, Streams: []string{r.Stream, ">"}, Count: n, Block: -1}).Err())
					rd.Start()
				}
				held := func() int {
					rd.s.inflight.mu.Lock()
					defer rd.s.inflight.mu.Unlock()
					return rd.s.inflight.bytes
				}
				redistest.Eventually(t, "it is full", func() bool { return held() >= maxHeldBytes })
				if owner != "me" { // nothing was acknowledged yet
					p, err := r.Client.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: r.Stream, Group: redistest.Group, Consumer: "me", Start: "-", End: "+", Count: n}).Result()
					require.NoError(t, err)
					require.LessOrEqual(t, len(p), maxHeldBytes/size+1)
				}
				seen := map[string]bool{}
				for len(seen) < n {
					require.LessOrEqual(t, held(), maxHeldBytes+size+100)
					seen[redistest.ReceiveAck(t, out).UUID] = true
				}
				redistest.Eventually(t, "nothing is held", func() bool { return held() == 0 })
				r.NothingPending()
			})
		})
	}
}

// A large entry makes the next commands fetch few, and small ones then raise the number again.
// Small entries alone change nothing.
func TestHowManyEntriesACommandFetches(t *testing.T) {
	t.Parallel()
	o := Options{}.withDefaults()
	table := newInflight(&o, NewMetrics())
	require.Equal(t, 10, table.fits(256, 10), "nothing is known")
	table.expect(1, 0)
	require.Equal(t, 256, table.fits(256, 10))
	table.expect(10, 10*16<<10)
	require.Equal(t, 256, table.fits(256, 10), "256 entries of 16 KiB are 4 MiB")
	table.expect(10, 10*32<<10)
	require.Equal(t, 128, table.fits(256, 10))
	table.expect(1, 6<<20)
	require.Equal(t, 1, table.fits(256, 10))
	var counts []int
	for range 9 {
		table.expect(256, 256*1000)
		counts = append(counts, table.fits(256, 10))
	}
	require.Equal(t, []int{1, 2, 5, 10, 21, 42, 85, 170, 256}, counts)
	table.bytes = maxHeldBytes - 100_000
	require.Equal(t, 8, table.fits(256, 10), "what is in flight counts, and 12 KiB are expected")
	table.bytes = maxHeldBytes
	require.False(t, table.hasRoom())
	require.Zero(t, table.free())
}
