package kafka

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
)

func TestMarshalIsWatermillsFormatWithAKey(t *testing.T) {
	t.Parallel()
	m := message.NewMessage("uuid", []byte("payload"))
	m.Metadata = message.Metadata{"own": "1", pipeline.MetaKey: "key", wkafka.UUIDHeaderKey: "stray"}
	r, err := marshaler{}.Marshal("t", m)
	require.NoError(t, err)
	key, err := r.Key.Encode()
	require.NoError(t, err)
	require.Equal(t, "key", string(key))
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[string(h.Key)] = string(h.Value)
	}
	require.Equal(t, map[string]string{wkafka.UUIDHeaderKey: "uuid", "own": "1"}, headers)
	require.Len(t, m.Metadata, 3, "the caller's message is left alone")

	r, err = marshaler{}.Marshal("t", message.NewMessage("uuid", nil))
	require.NoError(t, err)
	require.Nil(t, r.Key, "no key, any partition")
}

// TestPublishRoundTrip sends messages of every kind and size and reads them back.
func TestPublishRoundTrip(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		for _, compression := range []string{"none", "zstd"} {
			t.Run(compression, func(t *testing.T) {
				p := start(t, brokers, func(c *Config) { c.Compression = compression })
				topic := topicFor(t, p)
				// Not compressible, so that the size on the wire is what is meant.
				noise := make([]byte, 1<<20)
				_, err := rand.Read(noise)
				require.NoError(t, err)
				want := map[string]*message.Message{}
				for _, payload := range [][]byte{nil, []byte("small"), noise, noise[:batchBytes-100], noise[:batchBytes/2]} {
					m := message.NewMessage(watermill.NewUUID(), payload)
					m.Metadata.Set("size", strings.Repeat("x", len(want)))
					m.Metadata.Set(pipeline.MetaKey, "key")
					want[m.UUID] = m
				}
				all := make([]*message.Message, 0, len(want))
				for _, m := range want {
					all = append(all, m)
				}
				publish(t, p, topic, all...)
				_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
				partitions := map[int32]bool{}
				for range want {
					m := next(t, out)
					require.Contains(t, want, m.UUID)
					require.Equal(t, want[m.UUID].Metadata, m.Metadata)
					require.True(t, slices.Equal(want[m.UUID].Payload, m.Payload))
					partitions[partitionOf(m)] = true
					m.Ack()
				}
				require.Len(t, partitions, 1, "one key, one partition")

				err = p.Sink(topic).Publish(t.Context(), message.NewMessage("u", make([]byte, 2<<20)))
				require.True(t, pipeline.IsPermanent(err), "%v", err)
				require.Equal(t, pipeline.ClassTooLarge, pipeline.Class(err))
			})
		}
	})
}

func TestPublishToATopicThatTakesLess(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		small, p := start(t, brokers, func(c *Config) { c.MaxMessageBytes = 10_000 }), start(t, brokers)
		topic := topicFor(t, p)
		require.NoError(t, small.ensureTopics(t.Context(), topic))
		noise := make([]byte, 20_000)
		_, err := rand.Read(noise)
		require.NoError(t, err)
		err = p.Sink(topic).Publish(t.Context(), message.NewMessage("u", noise))
		require.True(t, pipeline.IsPermanent(err), "%v", err)
		require.Equal(t, pipeline.ClassTooLarge, pipeline.Class(err))
		publish(t, p, topic, texts("small")...)
	})
}

func TestPublishHonoursItsContext(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		p := start(t, cluster.ListenAddrs())
		publish(t, p, "t", texts("x")...)
		done, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, p.Sink("t").Publish(done, texts("x")...), context.Canceled)
		require.NoError(t, p.Sink("t").Publish(done), "nothing to do")
		cluster.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		begin := time.Now()
		require.ErrorIs(t, p.Sink("t").Publish(ctx, texts(numbered(1000)...)...), context.DeadlineExceeded)
		require.Less(t, time.Since(begin), 30*time.Second) // a machine may stand still, but PublishTimeout is longer
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		begin = time.Now()
		require.ErrorIs(t, p.Sink("a new topic").Publish(ctx, texts("x")...), context.DeadlineExceeded)
		require.Less(t, time.Since(begin), 30*time.Second) // a machine may stand still, but PublishTimeout is longer
		// The stop is bounded too, though a thousand records still wait for a broker.
		ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, service{p}.Stop(ctx), context.DeadlineExceeded)
	})
}

// TestPublishWaitsForTheBrokers: the broker is unavailable for longer than sarama's own retries
// last.
func TestPublishWaitsForTheBrokers(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		addr, boot := restartable(t)
		cluster := boot()
		p := start(t, []string{addr})
		publish(t, p, "t", texts("before")...)
		cluster.Close()
		results := make(chan error, 50)
		for i := range cap(results) {
			go func() { results <- p.Sink("t").Publish(t.Context(), texts(fmt.Sprint(i), fmt.Sprint(i, " again"))...) }()
		}
		select {
		case err := <-results:
			require.Fail(t, "gave up early", "%v", err)
		case <-time.After(3 * time.Second):
		}
		cluster = boot()
		for range cap(results) {
			require.NoError(t, <-results)
		}
		once(t, p, "t", 1+2*cap(results))
		require.NoError(t, service{p}.Stop(t.Context()))
		cluster.Close()
	})
}

func TestSecureConnections(t *testing.T) {
	t.Parallel()
	ca, pair := pipelinetest.Certificate(t)
	serverTLS := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism+"/kfake", func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, "user", "secret"), kfake.TLS(serverTLS))
			require.NoError(t, err)
			t.Cleanup(cluster.Close)
			p := start(t, cluster.ListenAddrs(), func(c *Config) {
				c.TLS = setting.TLS{Enabled: true, CAFile: ca}
				c.SASL = SASL{Mechanism: mechanism, User: "user", Password: setting.NewSecret("secret")}
			})
			_, out := subscribe(t, p.Source("t", "g"), pipeline.Flow{})
			publish(t, p, "t", texts("secret")...)
			next(t, out).Ack()

			wrong, _ := logged(t, cluster.ListenAddrs()[0])
			c := wrong.Settings().(*Config)
			c.TLS, c.SASL = p.config.TLS, p.config.SASL
			c.SASL.Password = setting.NewSecret("guess")
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			err = service{wrong}.Start(ctx)
			require.ErrorIs(t, err, errUnavailable)
			require.NotContains(t, err.Error(), "guess")

			c.TLS = setting.TLS{Enabled: true, CAFile: filepath.Join(t.TempDir(), "absent.pem")}
			require.ErrorContains(t, service{wrong}.Start(t.Context()), "tls.ca_file")
		})
	}
}

// The password changes while the broker is away. Publisher and subscription reach it again.
func TestEachLoginSendsTheCurrentPassword(t *testing.T) {
	t.Parallel()
	tier.Rest(t)
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism+"/kfake", func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "password")
			addr, boot := restartable(t)
			with := func(password string) *kfake.Cluster {
				require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
				return boot(kfake.EnableSASL(), kfake.Superuser(mechanism, "user", password))
			}
			cluster := with("one")
			p := start(t, []string{addr}, func(c *Config) {
				c.SASL = SASL{Mechanism: mechanism, User: "user"}
				require.NoError(t, c.SASL.Password.UnmarshalText([]byte("file:"+file)))
			})
			_, out := subscribe(t, p.Source("t", "g"), pipeline.Flow{})
			publish(t, p, "t", texts("one")...)
			next(t, out).Ack()
			cluster.Close()
			cluster = with("two")
			t.Cleanup(cluster.Close)
			require.Eventually(t, func() bool { return p.Sink("t").Publish(t.Context(), texts("two")...) == nil }, 2*time.Minute, 10*time.Millisecond)
			for m := next(t, out); ; m = next(t, out) { // the first one may be delivered again
				m.Ack()
				if string(m.Payload) == "two" {
					break
				}
			}
		})
	}
}

// A broker that has a newer epoch of the producer refuses its records once. They are published
// again, with the new epoch.
func TestRecordsOfAnOldEpochArePublishedAgain(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		p := start(t, cluster.ListenAddrs())
		require.NoError(t, p.ensureTopics(t.Context(), "t"))
		var refused atomic.Int32
		cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
			refused.Add(1)
			answer := r.ResponseKind().(*kmsg.ProduceResponse)
			for _, topic := range r.(*kmsg.ProduceRequest).Topics {
				refusal := kmsg.ProduceResponseTopic{Topic: topic.Topic, TopicID: topic.TopicID}
				for _, partition := range topic.Partitions {
					refusal.Partitions = append(refusal.Partitions, kmsg.ProduceResponseTopicPartition{
						Partition: partition.Partition, ErrorCode: int16(sarama.ErrInvalidProducerEpoch),
					})
				}
				answer.Topics = append(answer.Topics, refusal)
			}
			return answer, nil, true
		})
		publish(t, p, "t", texts("a", "b")...)
		require.EqualValues(t, 1, refused.Load())
	})
}

// A large record opens no connection: while a broker does not answer, that would take longer than
// the publish may.
func TestALargeRecordOpensNothing(t *testing.T) {
	t.Parallel()
	t.Run("kfake", func(t *testing.T) {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
		require.NoError(t, err)
		t.Cleanup(cluster.Close)
		p := start(t, cluster.ListenAddrs())
		require.NoError(t, p.ensureTopics(t.Context(), "t"))
		var opened atomic.Int32
		cluster.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			opened.Add(1)
			return nil, nil, false
		})
		publish(t, p, "t", message.NewMessage(watermill.NewUUID(), make([]byte, batchBytes+1)))
		require.Zero(t, opened.Load())
	})
}
