package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// ledger is a plugin with an outbox, as a handler plugin has one.
type ledger struct {
	dead *deadletter.Plugin

	mu     sync.Mutex
	outbox []deadletter.Entry
}

func (*ledger) Name() string { return "ledger" }

func (l *ledger) Register(r *pipeline.Registry) error {
	r.Service("ledger-dead-letters", l.dead.Relay("ledger", l))
	return nil
}

func (l *ledger) left() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.outbox)
}

// Relay implements deadletter.Outbox: the lock is the transaction.
func (l *ledger) Relay(ctx context.Context, limit int, publish func(context.Context, []deadletter.Entry) error) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.outbox) == 0 {
		return 0, nil
	}
	batch := slices.Clone(l.outbox[:min(limit, len(l.outbox))])
	err := publish(ctx, batch)
	var partial *pipeline.PartialError
	if err != nil && !errors.As(err, &partial) {
		return 0, err
	}
	rest := slices.Clone(l.outbox[len(batch):])
	for i, letter := range batch {
		if partial != nil && partial.Failed[i] != nil {
			rest = append(rest, letter)
		}
	}
	l.outbox = rest
	n := len(batch)
	if partial != nil {
		n -= len(partial.Failed)
	}
	return n, err
}

func kafkaServers(t *testing.T) map[string]func(*testing.T) []string {
	t.Helper()
	return map[string]func(*testing.T) []string{
		"kfake": func(t *testing.T) []string {
			tier.Embedded(t)
			home, err := embedded.Start(t.Context(), embedded.Config{}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, home.Stop(context.Background())) })
			return home.KafkaAddrs()
		},
		"kafka": func(t *testing.T) []string {
			return []string{tier.Real(t, "kafka")}
		},
	}
}

// TestRelayOnKafka publishes dead letters through the Kafka plugin and reads them with another
// client. One is too large for a broker: it is cut.
func TestRelayOnKafka(t *testing.T) {
	for name, server := range kafkaServers(t) {
		t.Run(name, func(t *testing.T) {
			brokers := server(t)
			topic := fmt.Sprintf("deadletter-test-%d-dead", time.Now().UnixNano())
			reader, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.MetadataMinAge(50*time.Millisecond))
			require.NoError(t, err)
			t.Cleanup(func() {
				_, err := kadm.NewClient(reader).DeleteTopic(context.Background(), topic)
				require.NoError(t, err)
				reader.Close()
			})

			k := kafka.New()
			settings, ok := k.Settings().(*kafka.Config)
			require.True(t, ok)
			settings.Brokers = brokers
			settings.Partitions = 1
			dead := deadletter.New(k)
			box := &ledger{dead: dead}
			failed := time.Date(2026, 3, 4, 5, 6, 7, 890, time.UTC)
			good := deadletter.Entry{Topic: topic, DeadLetter: pipeline.DeadLetter{
				Payload: []byte("{not json\x00\xff"), Key: "777", Class: "undecodable", Error: "decode: bad", Handler: "points",
				Origin: "orders/3@42", Attempts: 6, FirstFailedAt: failed, FailedAt: failed.Add(time.Minute),
				Metadata: map[string]string{"own": "header", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
			}}
			large := deadletter.Entry{Topic: topic, DeadLetter: pipeline.DeadLetter{Payload: make([]byte, 8<<20), Origin: "orders/3@43"}}
			box.outbox = []deadletter.Entry{good, large, good}
			pipelinetest.Start(t, k, dead, box)

			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var records []*kgo.Record
			for len(records) < 3 {
				fetches := reader.PollFetches(ctx)
				require.NoError(t, ctx.Err(), "got %d dead letters of 3", len(records))
				records = append(records, fetches.Records()...)
			}
			cut := 0
			for _, r := range records {
				if len(r.Key) == 0 {
					cut++
					require.Len(t, r.Value, 8<<10)
					require.Contains(t, r.Headers, kgo.RecordHeader{Key: pipeline.MetaDeadPayloadBytes, Value: []byte("8388608")})
					require.Contains(t, r.Headers, kgo.RecordHeader{Key: pipeline.MetaDeadOrigin, Value: []byte("orders/3@43")})
					continue
				}
				require.Equal(t, "777", string(r.Key))
				require.Equal(t, "{not json\x00\xff", string(r.Value), "the payload is as it came")
				headers := map[string]string{}
				for _, h := range r.Headers {
					headers[h.Key] = string(h.Value)
				}
				delete(headers, "_watermill_message_uuid")
				require.Equal(t, map[string]string{
					"own":                           "header",
					"traceparent":                   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
					"millrace-dead-class":           "undecodable",
					"millrace-dead-error":           "decode: bad",
					"millrace-dead-handler":         "points",
					"millrace-dead-origin":          "orders/3@42",
					"millrace-dead-attempts":        "6",
					"millrace-dead-first-failed-at": "2026-03-04T05:06:07.00000089Z",
					"millrace-dead-failed-at":       "2026-03-04T05:07:07.00000089Z",
				}, headers)
			}
			require.Equal(t, 1, cut)
			require.Eventually(t, func() bool { return box.left() == 0 }, 2*time.Minute, 10*time.Millisecond)
		})
	}
}
