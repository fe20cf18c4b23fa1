package kafka

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// router is a plugin of routes.
type router []pipeline.Route

func (router) Name() string { return "router" }

func (p router) Register(r *pipeline.Registry) error {
	for _, route := range p {
		r.Route(route)
	}
	return nil
}

// isRetryTopic makes topic a route's retry topic.
func isRetryTopic(t *testing.T, p *Plugin, topic string) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, router{{
		Name: "route", From: p.Source(topic, topic), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		Policy: pipeline.Policy{Retry: pipeline.Retry{To: p.Sink(topic)}, DeadLetter: pipeline.Drop},
	}})
	require.NoError(t, err)
	p.routes = reg
}

// everything reads what is in a topic now, with its headers.
func everything(t *testing.T, p *Plugin, topic string, n int) []*message.Message {
	t.Helper()
	sub, out := subscribe(t, p.Source(topic, topic+"-"+watermill.NewShortUUID()), pipeline.Flow{})
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = next(t, out)
		msgs[i].Ack()
	}
	require.NoError(t, sub.Close())
	return msgs
}

// A record just under the limit of its topic leaves no room for the headers that say why it failed.
// It is dead-lettered all the same, once, and the records behind it are handled.
func TestARecordNearTheLimitIsDeadLettered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		size    int  // of the payload
		made    bool // retry and dead-letter topic exist, with the limit of other topics
		retried int
		dead    func(*testing.T, *message.Message)
	}{
		{"topics of ours", 2<<20 - 300, false, 2, func(t *testing.T, m *message.Message) {
			n := len(m.Payload) // require.Len would print two megabytes
			require.Equal(t, 2<<20-300, n)
			require.Empty(t, m.Metadata.Get(pipeline.MetaDeadPayloadBytes))
		}},
		{"topics of an administrator", 2<<20 - 100, true, 0, func(t *testing.T, m *message.Message) {
			n := len(m.Payload)
			require.Equal(t, 8<<10, n)
			require.Equal(t, strconv.Itoa(2<<20-100), m.Metadata.Get(pipeline.MetaDeadPayloadBytes))
			require.Regexp(t, `/0@0$`, m.Metadata.Get(pipeline.MetaDeadOrigin))
		}},
		{"larger than all of ours", 3 << 20, false, 0, func(t *testing.T, m *message.Message) {
			require.Equal(t, strconv.Itoa(3<<20), m.Metadata.Get(pipeline.MetaDeadPayloadBytes))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				one := func(c *Config) { c.Partitions = 1 }
				p := start(t, brokers, one)
				in, retry, dead := topicFor(t, p), topicFor(t, p), topicFor(t, p)
				large := start(t, brokers, one, func(c *Config) { c.MaxMessageBytes = 4 << 20 })
				require.NoError(t, large.ensureTopics(t.Context(), in))
				if tt.made {
					require.NoError(t, p.ensureTopics(t.Context(), retry, dead))
				}
				noise := make([]byte, tt.size)
				_, err := rand.Read(noise)
				require.NoError(t, err)
				publish(t, large, in, message.NewMessage("near the limit", noise))
				publish(t, large, in, texts("behind it")...)

				k := New()
				c := k.Settings().(*Config)
				quick(c)
				one(c)
				c.Brokers = brokers
				var retried atomic.Int64
				behind := make(chan struct{}, 1)
				handle := func(m *message.Message) ([]*message.Message, error) {
					if string(m.Payload) == "behind it" {
						behind <- struct{}{}
						return nil, nil
					}
					if m.Metadata.Get(pipeline.MetaAttempt) != "" {
						retried.Add(1)
					}
					return nil, errors.New("not now")
				}
				policy := pipeline.Policy{DeadLetter: k.Sink(dead), Retry: pipeline.Retry{To: k.Sink(retry), Max: 2}}
				pipelinetest.Start(t, k, router{
					{Name: "in", From: k.Source(in, in), Handle: handle, Policy: policy, Flow: pipeline.Flow{Order: pipeline.OrderPartition}},
					{Name: "again", From: k.Source(retry, retry), Handle: handle, Policy: policy},
				})
				select {
				case <-behind:
				case <-time.After(2 * time.Minute):
					require.FailNow(t, "the record behind it is not handled")
				}
				require.Eventually(t, func() bool { return testutil.ToFloat64(k.metrics.published.WithLabelValues(dead)) > 0 }, 2*time.Minute, 10*time.Millisecond)
				_, out := subscribe(t, p.Source(dead, dead), pipeline.Flow{})
				got := next(t, out)
				tt.dead(t, got)
				got.Ack()
				require.EqualValues(t, tt.retried, retried.Load())
				require.InDelta(t, 1, testutil.ToFloat64(k.metrics.published.WithLabelValues(dead)), 0, "once")
			})
		})
	}
}

// A batch over its topic's limit is sent in pieces: only a record that is refused alone is too
// large.
func TestABatchOverTheTopicsLimit(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		small, p := start(t, brokers, func(c *Config) { c.MaxMessageBytes, c.Partitions = 20_000, 2 }), start(t, brokers)
		topic := topicFor(t, p)
		require.NoError(t, small.ensureTopics(t.Context(), topic))
		text := string(bytes.Repeat([]byte("x"), 500))
		batch := make([]*message.Message, 100)
		for i := range batch {
			batch[i] = texts(fmt.Sprint(i, " ", text))[0]
			batch[i].Metadata.Set(pipeline.MetaKey, fmt.Sprint("key ", i/97))
		}
		publish(t, p, topic, batch...)
		once(t, p, topic, 100)

		var g errgroup.Group
		for i := range 200 {
			g.Go(func() error { return p.Sink(topic).Publish(t.Context(), texts(fmt.Sprint("single ", i, " ", text))...) })
		}
		require.NoError(t, g.Wait())
		once(t, p, topic, 300)

		err := p.Sink(topic).Publish(t.Context(), texts("small", string(make([]byte, 30_000)), "small too")...)
		require.True(t, pipeline.IsPermanent(err), "%v", err)
		require.Equal(t, pipeline.ClassTooLarge, pipeline.Class(err))
	})
}

// once requires that a topic has n different records, once each.
func once(t *testing.T, p *Plugin, topic string, n int) {
	t.Helper()
	found := map[string]int{}
	partitions := map[int32]bool{}
	_, err := p.Scan(t.Context(), topic, func(s Scanned) error {
		found[string(s.Value)]++
		partitions[s.Partition] = true
		return nil
	})
	require.NoError(t, err)
	different := len(found)
	require.Equal(t, n, different)
	for text, times := range found {
		require.Equal(t, 1, times, "%.20s", text)
	}
	require.Greater(t, len(partitions), 1)
}

// A sink whose topic was deleted makes it again.
func TestPublishNoticesADeletedTopic(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p, other := start(t, brokers), start(t, brokers)
		topic := topicFor(t, other)
		publish(t, p, topic, texts("before")...)
		deleteTopics(t, other, topic)
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			return p.Sink(topic).Publish(ctx, texts("after")...) == nil
		}, 2*time.Minute, 10*time.Millisecond)
	})
}

// A commit beyond the end of the log, as after a restore, repeats the partition once and not at
// each session.
func TestACommitBeyondTheEnd(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		before, _ := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		require.Eventually(t, func() bool {
			return testutil.ToFloat64(p.metrics.bySubscription[countSessions].WithLabelValues(topic, topic)) > 0
		}, 2*time.Minute, 10*time.Millisecond)
		require.NoError(t, before.Close()) // the group exists
		publish(t, p, topic, texts("a", "b", "c")...)
		commit(t, p, topic, 1000)
		for _, want := range [][]string{{"a", "b", "c"}, {"new"}} {
			sub, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
			if want[0] == "new" {
				publish(t, p, topic, texts("new")...)
			}
			for _, text := range want {
				m := next(t, out)
				require.Equal(t, text, string(m.Payload))
				m.Ack()
			}
			require.NoError(t, sub.Drain(t.Context()))
		}
	})
}

// commit sets a group's offset, as a tool does.
func commit(t *testing.T, p *Plugin, topic string, offset int64) {
	t.Helper()
	commitOf(t, p, topic, 0, offset)
}

func commitOf(t *testing.T, p *Plugin, topic string, number int32, offset int64) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	offsets, err := sarama.NewOffsetManagerFromClient(topic, live.client)
	require.NoError(t, err)
	partition, err := offsets.ManagePartition(topic, number)
	require.NoError(t, err)
	partition.MarkOffset(offset, "")
	require.NoError(t, partition.Close())
	offsets.Commit()
	require.NoError(t, offsets.Close())
}

// A record that is moved to the end of its topic stays as it was.
func TestAMovedRecordIsTheSame(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		isRetryTopic(t, p, topic)
		m := message.NewMessage("uuid", nil) // a tombstone
		m.Metadata = message.Metadata{pipeline.MetaKey: "key", "own": "1", pipeline.MetaDue: "2001-02-03T04:05:06Z"}
		publish(t, p, topic, m)
		source, err := p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
		require.NoError(t, err)
		s, ours := source.(*subscription)
		require.True(t, ours)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		c := newClaim(t.Context(), s, 0, 0, progress{}, nil, nil)
		require.NoError(t, c.moveToEnd(&record{pristine: everything(t, p, topic, 1)[0]}))
		both := everything(t, p, topic, 2)
		require.Equal(t, both[0].UUID, both[1].UUID)
		require.Equal(t, both[0].Metadata, both[1].Metadata)
		require.Nil(t, both[1].Payload)
	})
}
