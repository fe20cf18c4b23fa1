package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// A partition whose broker is gone reports an error. Watermill's subscriber reads no errors, so a
// partition that waited for a reader would wait forever.
func TestBroadcastOutlivesItsBroker(t *testing.T) {
	t.Parallel()
	addr, boot := restartable(t)
	cluster := boot()
	p, _ := logged(t, addr)
	require.NoError(t, service{p}.Start(t.Context()))
	_, out := subscribe(t, p.Broadcast("t"), pipeline.Flow{})
	publish(t, p, "t", texts("before")...)
	next(t, out).Ack()
	for range channelBuffer + 2 { // one error each time, at least
		cluster.Close()
		cluster = boot()
		publish(t, p, "t", texts("after")...)
		m := next(t, out)
		require.Equal(t, "after", string(m.Payload))
		m.Ack()
	}
	require.NoError(t, service{p}.Stop(t.Context()))
	cluster.Close()
}

// A nacked record says how often it was delivered, so that a limit of deliveries can end it.
func TestBroadcastCountsDeliveries(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		_, out := subscribe(t, p.Broadcast(topic), pipeline.Flow{})
		publish(t, p, topic, texts("a", "b")...)
		for _, text := range []string{"a", "b"} {
			for n := range int64(4) {
				m := next(t, out)
				require.Equal(t, text, string(m.Payload))
				require.Equal(t, n+1, pipeline.DeliveryFrom(m.Context()).Delivered)
				if n < 3 {
					m.Nack()
				} else {
					m.Ack()
				}
			}
		}
	})
}

// A broadcast delivers all of a topic that was created again, also what is before its position in
// the former one.
func TestABroadcastOfATopicCreatedAgainLosesNoRecord(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = newPartitions })
		topic := topicFor(t, p)
		sub, out := subscribe(t, p.Broadcast(topic), pipeline.Flow{})
		b, ours := sub.(*broadcast)
		require.True(t, ours)
		w := newWork()
		w.on(out, 0)
		fill(t, p, topic, "old", 15)
		w.waitFor(t, 15*newPartitions)
		recreate(t, p, topic, "new", 40)
		go loop.Every(t.Context(), 50*time.Millisecond, b.compareTopic)
		require.Eventually(t, func() bool { return w.fetched("new") == 40*newPartitions }, 2*time.Minute, 20*time.Millisecond)
	})
}
