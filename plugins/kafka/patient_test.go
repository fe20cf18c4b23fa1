package kafka

import (
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
)

// A partition that can't be read is waited for while the others are read in the same session.
func TestAPartitionWithoutALeaderStopsNoOther(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		p := start(t, cluster.ListenAddrs())
		topic := "t"
		payloads := numbered(400)
		publish(t, p, topic, texts(payloads...)...)

		var lost atomic.Bool
		asked := make(chan struct{}, 1000)
		cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			r, ok := req.(*kmsg.ListOffsetsRequest)
			if !ok || !lost.Load() {
				return nil, nil, false
			}
			for _, of := range r.Topics {
				for _, part := range of.Partitions {
					if part.Partition == 0 {
						asked <- struct{}{}
						answer := kmsg.NewListOffsetsResponse()
						answer.SetVersion(r.GetVersion())
						answered := kmsg.NewListOffsetsResponseTopicPartition()
						answered.Partition, answered.ErrorCode = 0, kerr.LeaderNotAvailable.Code
						answer.Topics = []kmsg.ListOffsetsResponseTopic{{Topic: of.Topic, Partitions: []kmsg.ListOffsetsResponseTopicPartition{answered}}}
						return &answer, nil, true
					}
				}
			}
			return nil, nil, false
		})
		lost.Store(true)
		_, out := subscribe(t, p.Source(topic, "g"), pipeline.Flow{})
		for range 20 { // it is tried again and again
			<-asked
		}
		w := newWork()
		w.on(out, 0)
		w.waitFor(t, 1)
		require.Equal(t, 1.0, testutil.ToFloat64(p.metrics.sessions.WithLabelValues(topic, "g")), "one session")
		lost.Store(false)
		w.waitFor(t, len(payloads))
		require.Equal(t, 1.0, testutil.ToFloat64(p.metrics.sessions.WithLabelValues(topic, "g")), "still the same")
		require.Empty(t, w.twice())
	})
}
