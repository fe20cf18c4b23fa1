package kafka

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.kafka of the settings. DefaultConfig gives every default; a zero
// Config is not usable. The service reads it when it starts. So the embedded environment can still
// replace Brokers after the settings were decoded.
type Config struct {
	// Brokers are the addresses (host:port) of the first metadata request.
	Brokers []string `yaml:"brokers"`
	// ClientID names this program in the broker's logs and quotas.
	ClientID string `yaml:"client_id"`
	// Version is the oldest Kafka the cluster may run (at least 2.8.0): it picks the protocol
	// versions.
	Version string `yaml:"version"`

	// Window is how many records of one partition may be between the first unacknowledged and the
	// last one read, unless the route's Flow says otherwise.
	Window int `yaml:"window"`
	// WindowBytes bounds the payloads and headers in all windows of one subscription. A partition
	// with nothing in flight may always read one more record that is due, however large.
	WindowBytes int64 `yaml:"window_bytes"`
	// FetchBytes is how many bytes of a partition one request reads, before decompression. A larger
	// batch is read completely.
	FetchBytes int32 `yaml:"fetch_bytes"`
	// InitialOffset is where a group without a commit begins: oldest or newest.
	InitialOffset string `yaml:"initial_offset"`

	TLS  setting.TLS `yaml:"tls"`
	SASL SASL        `yaml:"sasl"`
	// AllowPlaintextCredentials accepts a SASL password without TLS for brokers on other machines.
	AllowPlaintextCredentials bool `yaml:"allow_plaintext_credentials"`

	// DialTimeout bounds one connection attempt.
	DialTimeout time.Duration `yaml:"dial_timeout"`
	// RequestTimeout bounds one request to a broker.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// Balance are the ways to share partitions among the members of a group, preferred first:
	// range, sticky or cooperative-sticky. All members of a group must have one in common. With
	// cooperative-sticky alone a member reads the partitions that it keeps during a rebalance. With
	// any other list each rebalance stops all partitions of the group.
	Balance []string `yaml:"balance"`
	// StaticMembership gives each subscription a group.instance.id made of instance_id and the
	// topic: a restart within SessionTimeout gets its partitions back without a rebalance. It needs
	// instance_id.
	StaticMembership bool `yaml:"static_membership"`
	// SessionTimeout is how long a silent member stays in its group (session.timeout.ms).
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// HeartbeatInterval is how often a member sends a heartbeat, and how soon it sees a rebalance.
	HeartbeatInterval time.Duration `yaml:"heartbeat_interval"`
	// RebalanceTimeout is how long the group waits for a member to release its partitions.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// DrainTimeout is how long a claim waits for records in flight when partitions are revoked. It
	// must stay well under RebalanceTimeout.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// CloseTimeout is how long Close waits for records in flight before it abandons them.
	CloseTimeout time.Duration `yaml:"close_timeout"`
	// CommitInterval is how often marks are committed.
	CommitInterval time.Duration `yaml:"commit_interval"`

	// NackBackoff is the wait before a nacked record is delivered again.
	NackBackoff pipeline.Backoff `yaml:"nack_backoff"`
	// ReconnectBackoff is the wait between attempts to reach the brokers or to join a group.
	ReconnectBackoff pipeline.Backoff `yaml:"reconnect_backoff"`
	// HeadOfLineWarnAfter is how long one record may hold back half a window of acknowledged ones
	// before it is named in the log.
	HeadOfLineWarnAfter time.Duration `yaml:"head_of_line_warn_after"`

	// PartitionMetrics gives each partition gauges of its own. Otherwise they are of a topic and group:
	// what can be counted is added up, and of times the longest is shown.
	PartitionMetrics bool `yaml:"partition_metrics"`

	// PublishTimeout bounds one Publish: for that long the brokers may be unavailable.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxMessageBytes is the largest record that is published, and the limit of topics created
	// here. Retry and dead-letter topics take 64 KiB more, for their headers.
	MaxMessageBytes int `yaml:"max_message_bytes"`
	// Compression of published batches: none, gzip, snappy, lz4 or zstd.
	Compression string `yaml:"compression"`

	// CreateTopics creates missing topics when a Source is opened or a Sink is used first. Off, a
	// start fails with ErrTopicMissing when a topic of a route does not exist, or one that a plugin
	// declares (Registry.Endpoint); the command `topics create` creates them.
	CreateTopics bool `yaml:"create_topics"`
	// Partitions and ReplicationFactor are those of created topics. With 3 replicas or more they
	// have min.insync.replicas 2.
	Partitions        int32 `yaml:"partitions"`
	ReplicationFactor int16 `yaml:"replication_factor"`
}

// SASL is how this program authenticates. The zero value does not.
type SASL struct {
	Mechanism string         `yaml:"mechanism"` // "", PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
	User      string         `yaml:"user"`      // not of OAUTHBEARER
	Password  setting.Secret `yaml:"password"`  // not of OAUTHBEARER
	// Token is that of OAUTHBEARER. Whoever issues it replaces its file before it expires.
	Token setting.Secret `yaml:"token"`
}

// defaultConfig returns the defaults.
func defaultConfig() Config {
	return Config{
		Brokers:             []string{"127.0.0.1:9092"},
		ClientID:            "millrace",
		Version:             "2.8.0",
		Window:              256,
		WindowBytes:         16 << 20,
		FetchBytes:          4 << 10,
		InitialOffset:       "oldest",
		DialTimeout:         5 * time.Second,
		RequestTimeout:      30 * time.Second,
		Balance:             []string{balanceRange},
		SessionTimeout:      30 * time.Second,
		HeartbeatInterval:   3 * time.Second,
		RebalanceTimeout:    60 * time.Second,
		DrainTimeout:        20 * time.Second,
		CloseTimeout:        10 * time.Second,
		CommitInterval:      time.Second,
		NackBackoff:         pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second},
		ReconnectBackoff:    pipeline.Backoff{First: 250 * time.Millisecond, Max: 10 * time.Second},
		HeadOfLineWarnAfter: 30 * time.Second,
		PublishTimeout:      30 * time.Second,
		MaxMessageBytes:     2 << 20,
		Compression:         "none",
		CreateTopics:        true,
		Partitions:          8,
		ReplicationFactor:   1,
	}
}

var compressions = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

var mechanisms = []string{"", sarama.SASLTypePlaintext, sarama.SASLTypeSCRAMSHA256, sarama.SASLTypeSCRAMSHA512, sarama.SASLTypeOAuth}

// Validate reports every mistake at once, each as a *setting.FieldError.
func (c *Config) Validate() error {
	var p setting.Problems
	p.Check(len(c.Brokers) > 0, "brokers", "must name at least one host:port")
	for i, addr := range c.Brokers {
		host, port, err := net.SplitHostPort(addr)
		p.Check(err == nil && host != "" && port != "", fmt.Sprintf("brokers[%d]", i), "must be host:port, got %q", addr)
	}
	p.Check(c.ClientID != "", "client_id", "must not be empty")
	v, err := sarama.ParseKafkaVersion(c.Version)
	p.Check(err == nil, "version", "must be a Kafka version such as 2.8.0, got %q", c.Version)
	p.Check(err != nil || v.IsAtLeast(sarama.V2_8_0_0), "version", "must be at least 2.8.0, got %q", c.Version)
	p.Check(c.InitialOffset == "oldest" || c.InitialOffset == "newest", "initial_offset", "must be oldest or newest, got %q", c.InitialOffset)
	p.Check(len(c.Balance) > 0, "balance", "must name at least one of range, sticky, cooperative-sticky")
	for i, name := range c.Balance {
		path := fmt.Sprintf("balance[%d]", i)
		known := name == balanceRange || name == balanceSticky || name == balanceCooperative
		p.Check(known, path, "must be range, sticky or cooperative-sticky, got %q", name)
		p.Check(!known || !slices.Contains(c.Balance[:i], name), path, "names %s a second time", name)
	}
	_, known := compressions[c.Compression]
	p.Check(known, "compression", "must be none, gzip, snappy, lz4 or zstd, got %q", c.Compression)
	positive := func(path string, n int64) { p.Check(n > 0, path, "must be > 0, got %d", n) }
	positive("window", int64(c.Window))
	positive("window_bytes", c.WindowBytes)
	positive("fetch_bytes", int64(c.FetchBytes))
	positive("max_message_bytes", int64(c.MaxMessageBytes))
	positive("partitions", int64(c.Partitions))
	positive("replication_factor", int64(c.ReplicationFactor))
	atLeast := func(path string, d time.Duration) {
		p.Check(d >= time.Millisecond, path, "must be at least 1ms, got %s", d)
	}
	atLeast("dial_timeout", c.DialTimeout)
	atLeast("request_timeout", c.RequestTimeout)
	atLeast("session_timeout", c.SessionTimeout)
	atLeast("heartbeat_interval", c.HeartbeatInterval)
	atLeast("rebalance_timeout", c.RebalanceTimeout)
	atLeast("drain_timeout", c.DrainTimeout)
	atLeast("close_timeout", c.CloseTimeout)
	atLeast("publish_timeout", c.PublishTimeout)
	atLeast("commit_interval", c.CommitInterval)
	atLeast("head_of_line_warn_after", c.HeadOfLineWarnAfter)
	p.Check(c.HeartbeatInterval <= c.SessionTimeout/3, "heartbeat_interval", "must be at most a third of session_timeout (%s), got %s", c.SessionTimeout, c.HeartbeatInterval)
	p.Check(c.DrainTimeout+c.HeartbeatInterval <= c.RebalanceTimeout*3/4, "drain_timeout",
		"must leave a quarter of rebalance_timeout (%s) after heartbeat_interval, got %s", c.RebalanceTimeout, c.DrainTimeout)
	p.Under("tls", c.TLS.Validate())
	plain := !c.TLS.Enabled && !c.AllowPlaintextCredentials && !setting.Loopback(c.Brokers...)
	const without = "must not go without TLS to brokers on other machines: set tls.enabled: true, or allow_plaintext_credentials: true in this section"
	switch mechanism, user, password, token := c.SASL.Mechanism, c.SASL.User != "", !c.SASL.Password.IsZero(), !c.SASL.Token.IsZero(); {
	case !slices.Contains(mechanisms, mechanism):
		p.Check(false, "sasl.mechanism", "must be empty, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER, got %q", mechanism)
	case mechanism == "":
		const alone = `must be "" while sasl.mechanism is: set both or neither`
		p.Check(!user, "sasl.user", alone)
		p.Check(!password, "sasl.password", alone)
		p.Check(!token, "sasl.token", alone)
	case mechanism == sarama.SASLTypeOAuth:
		p.Check(token, "sasl.token", "must be set with mechanism %s", mechanism)
		p.Check(!user && !password, "sasl.mechanism", "must not be %s with user or password", mechanism)
		p.Check(!plain, "sasl.token", without)
	default:
		p.Check(!token, "sasl.token", "must be empty with mechanism %s", mechanism)
		p.Check(user, "sasl.user", "must be set with mechanism %s", mechanism)
		p.Check(password, "sasl.password", "must be set with mechanism %s", mechanism)
		p.Check(!plain, "sasl.password", without)
	}
	return p.Err()
}
