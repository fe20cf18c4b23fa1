package kafka

import (
	"crypto/rand"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// TestMemoryWithLargePayloads reads a topic of 1 MiB records into handlers that don't answer. Not
// parallel: it measures the whole process, so it runs only on a server outside of it.
func TestMemoryWithLargePayloads(t *testing.T) {
	t.Run("kafka", func(t *testing.T) {
		p := start(t, realServer().brokers(t), func(c *Config) { c.Partitions = 8 })
		topic := topicFor(t, p)
		noise := make([]byte, 1<<20)
		_, err := rand.Read(noise)
		require.NoError(t, err)
		const records = 120
		for i := range records {
			m := message.NewMessage(watermill.NewUUID(), noise)
			m.Metadata.Set(pipeline.MetaKey, strconv.Itoa(i))
			publish(t, p, topic, m)
		}
		before := heap()
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		var inFlight []*message.Message
		take := func() bool {
			select {
			case m := <-out:
				inFlight = append(inFlight, m)
				return true
			case <-time.After(2 * time.Second):
				return false
			}
		}
		for take() {
		}
		grown := heap() - before
		t.Logf("%d records of 1 MiB in flight, %d MiB on the heap", len(inFlight), grown>>20)
		require.Less(t, len(inFlight), 16+8+1, "window_bytes and one a partition")
		require.Less(t, grown, int64(100<<20))

		for _, m := range inFlight {
			m.Ack()
		}
		for range records - len(inFlight) { // and none is lost
			next(t, out).Ack()
		}
	})
}

// TestMemoryWithCompressedPayloads is the same with records that are a thousand times larger than
// what is fetched.
func TestMemoryWithCompressedPayloads(t *testing.T) {
	t.Run("kafka", func(t *testing.T) {
		p := start(t, realServer().brokers(t), func(c *Config) { c.Partitions, c.Compression = 1, "zstd" })
		topic := topicFor(t, p)
		const records = 300
		for range records {
			publish(t, p, topic, message.NewMessage(watermill.NewUUID(), make([]byte, 900_000)))
		}
		before := heap()
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		inFlight := []*message.Message{next(t, out)}
		for quiet := false; !quiet; {
			select {
			case m := <-out:
				inFlight = append(inFlight, m)
			case <-time.After(2 * time.Second):
				quiet = true
			}
		}
		grown := heap() - before
		t.Logf("%d records of 0.9 MB in flight, %d MiB on the heap", len(inFlight), grown>>20)
		// window_bytes and one record, four records, and a fetch: 4 KiB of batches of about 150
		// bytes each.
		require.Less(t, grown, int64(64<<20))
		for _, m := range inFlight {
			m.Ack()
		}
		for range records - len(inFlight) {
			next(t, out).Ack()
		}
	})
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
