package kafka

import (
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// channelBuffer is how many records sarama keeps ready for a partition, in addition to the response
// they come from.
const channelBuffer = 4

// batchBytes bounds a produced batch. It is under the default limit of brokers (message.max.bytes,
// 1048588), because sarama does not split a refused batch.
const batchBytes = 1_000_000

// headerAllowance is how much larger than other records the records of retry and dead-letter topics
// may be, in bytes. Their headers say where a record came from and why.
const headerAllowance = 64 << 10

// clientConfig translates the settings into what every sarama client here has in common. log has
// the warnings about secrets that can't be read again.
func clientConfig(c Config, log *slog.Logger) (*sarama.Config, error) {
	version, err := sarama.ParseKafkaVersion(c.Version)
	if err != nil {
		return nil, fmt.Errorf("version: %w", err)
	}
	s := sarama.NewConfig()
	s.ClientID = c.ClientID
	s.Version = version
	s.Net.DialTimeout = c.DialTimeout
	s.Net.ReadTimeout = c.RequestTimeout
	s.Net.WriteTimeout = c.RequestTimeout
	s.Admin.Timeout = c.RequestTimeout
	// Only the topics in use: a big cluster's full metadata is megabytes every few minutes.
	s.Metadata.Full = false
	// Otherwise a metadata request creates the topic with the broker's own number of partitions.
	s.Metadata.AllowAutoTopicCreation = false
	s.ChannelBufferSize = channelBuffer
	certificates, err := c.TLS.Live("plugins.kafka.tls", log)
	if err != nil {
		return nil, setting.FieldErrorsUnder("tls", err)
	}
	c.SASL.apply(s, log)
	// sarama would keep the certificates of the start, so the dialer encrypts its connections.
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, &loginDialer{
		&net.Dialer{Timeout: c.DialTimeout}, certificates, c.RequestTimeout, c.SASL.Mechanism == sarama.SASLTypePlaintext,
	}
	return s, nil
}

// adminConfig is for the client that reads cluster metadata. It alone requests all topics, because
// sarama finds the controller that way. It does so only when it is used.
func adminConfig(c Config, log *slog.Logger) (*sarama.Config, error) {
	s, err := clientConfig(c, log)
	if err != nil {
		return nil, err
	}
	s.Metadata.Full = true
	s.Metadata.RefreshFrequency = 0
	return s, nil
}

// consumerConfig is for group and broadcast subscribers.
func consumerConfig(c Config, log *slog.Logger) (*sarama.Config, error) {
	s, err := clientConfig(c, log)
	if err != nil {
		return nil, err
	}
	// A join is answered when the slowest member has released its partitions, at the latest after
	// the rebalance timeout.
	s.Net.ReadTimeout = max(c.RequestTimeout, c.RebalanceTimeout+5*time.Second)
	// How often the leader of a group looks for added partitions.
	s.Metadata.RefreshFrequency = time.Minute
	s.Consumer.Return.Errors = true
	s.Consumer.Fetch.Default = c.FetchBytes
	s.Consumer.IsolationLevel = sarama.ReadCommitted
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	if c.InitialOffset == "newest" {
		s.Consumer.Offsets.Initial = sarama.OffsetNewest
	}
	s.Consumer.Offsets.AutoCommit.Interval = c.CommitInterval
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	s.Consumer.Group.Session.Timeout = c.SessionTimeout
	s.Consumer.Group.Heartbeat.Interval = c.HeartbeatInterval
	s.Consumer.Group.Rebalance.Timeout = c.RebalanceTimeout
	return s, nil
}

// producerConfig is for the shared publisher: durable on all in-sync replicas, and idempotent.
func producerConfig(c Config, log *slog.Logger) (*sarama.Config, error) {
	s, err := clientConfig(c, log)
	if err != nil {
		return nil, err
	}
	s.ChannelBufferSize = 256
	s.Net.MaxOpenRequests = 1 // sarama's condition for an idempotent producer
	s.Producer.Idempotent = true
	s.Producer.RequiredAcks = sarama.WaitForAll
	s.Producer.Return.Successes = true
	s.Producer.Return.Errors = true
	s.Producer.MaxMessageBytes = min(c.MaxMessageBytes, batchBytes)
	s.Producer.Compression = compressions[c.Compression]
	s.Producer.Partitioner = sarama.NewMurmur2Partitioner
	s.Producer.Retry.Max = 10 // for a change of leaders; the publisher itself waits for the brokers
	return s, nil
}
