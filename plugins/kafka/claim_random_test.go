package kafka

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// TestClaimUnderARandomHandler acks and nacks at random and revokes the partition at a random
// moment. Everything before the mark was acked. No record is in flight twice at once. Every record
// that the commit calls done was acked.
func TestClaimUnderARandomHandler(t *testing.T) {
	for seed := range uint64(30) {
		order := pipeline.Order(seed % 3)
		t.Run(fmt.Sprintf("%s_%d", order, seed), func(t *testing.T) {
			onBench(t, pipeline.Flow{Window: 1 + int(seed), Order: order}, benchOption{}, func(t *testing.T, b *bench) {
				random := newRandom(seed)
				var mu sync.Mutex
				inFlight, acked := map[int64]bool{}, map[int64]bool{}
				keysInFlight := map[string]bool{}
				for range 200 {
					headers := map[string]string{}
					if random.IntN(10) == 0 {
						headers = due(time.Duration(random.IntN(20)) * time.Second)
					}
					b.writeRecord(fmt.Sprint(random.IntN(8)), headers, "x")
				}
				handle := func(m *message.Message, took time.Duration, ack bool) {
					o, offset := pipeline.DeliveryFrom(m.Context()), offsetOf(m)
					mu.Lock()
					require.False(t, inFlight[offset], "in two hands")
					require.False(t, acked[offset], "delivered after its ack")
					if order == pipeline.OrderKey {
						require.False(t, keysInFlight[o.Key], "two of one key")
					}
					inFlight[offset], keysInFlight[o.Key] = true, true
					mu.Unlock()
					time.Sleep(took) // the work itself
					mu.Lock()
					inFlight[offset], keysInFlight[o.Key] = false, false
					acked[offset] = ack
					mu.Unlock()
					if ack {
						m.Ack()
					} else {
						m.Nack()
					}
				}
				end := time.After(time.Duration(1+random.IntN(20)) * time.Second)
				var handlers sync.WaitGroup
				for running := true; running; {
					select {
					case m := <-b.sub.Out:
						took, ack := time.Duration(random.IntN(300))*time.Millisecond, random.IntN(5) > 0
						handlers.Go(func() { handle(m, took, ack) })
					case <-end:
						b.endSess()
						running = false
					}
				}
				<-b.ended
				handlers.Wait()
				mark := b.marked()
				done := decodeProgress(mark, b.meta).done
				for o := range b.next {
					if o < mark || slices.Contains(done, o) {
						require.True(t, acked[o], "%d is called done and was not", o)
					} else {
						require.False(t, acked[o], "%d was done and will run again", o)
					}
				}
			})
		})
	}
}
