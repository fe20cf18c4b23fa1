package redispoll

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// ClientConfig says how to reach Redis or Valkey: standalone, Sentinel or Cluster.
type ClientConfig struct {
	Addrs            []string        `yaml:"addrs"`             // host:port; seeds of a cluster or of the sentinels when there are several
	MasterName       string          `yaml:"master_name"`       // not empty: addrs are sentinels
	Cluster          bool            `yaml:"cluster"`           // addrs (or the one configuration endpoint) belong to a cluster
	Username         string          `yaml:"username"`          // ACL user; empty: the default user
	Password         pipeline.Secret `yaml:"password"`          // of the user
	SentinelUsername string          `yaml:"sentinel_username"` // ACL user at the sentinels
	SentinelPassword pipeline.Secret `yaml:"sentinel_password"` // of that user
	DB               int             `yaml:"db"`                // database number; 0 only in a cluster
	TLS              TLSConfig       `yaml:"tls"`
	// AllowPlaintextCredentials accepts a password without TLS for servers on other machines.
	AllowPlaintextCredentials bool `yaml:"allow_plaintext_credentials"`

	PoolSize     int           `yaml:"pool_size"`     // connections a server; 0: ten a CPU, the library's default
	DialTimeout  time.Duration `yaml:"dial_timeout"`  // of one connection attempt
	ReadTimeout  time.Duration `yaml:"read_timeout"`  // of one reply
	WriteTimeout time.Duration `yaml:"write_timeout"` // of one command
	PoolTimeout  time.Duration `yaml:"pool_timeout"`  // wait for a free connection; 0: read_timeout + 1s
	// MaxRetries is how often the client itself re-sends a command after a network error or timeout. An XADD
	// that is re-sent may be in the stream twice. Reads are never re-sent. -1: never re-send anything.
	MaxRetries int `yaml:"max_retries"`
}

// TLSConfig turns encryption on. The zero value is plain TCP.
type TLSConfig struct {
	Enabled            bool   `yaml:"enabled"`
	CAFile             string `yaml:"ca_file"`     // PEM; empty: the system's roots
	CertFile           string `yaml:"cert_file"`   // PEM; with key_file: a client certificate
	KeyFile            string `yaml:"key_file"`    // PEM
	ServerName         string `yaml:"server_name"` // empty: the host of the address
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// Config is the settings section of the plugin (plugins.redis).
type Config struct {
	ClientConfig `yaml:",inline"`
	ReadDefaults `yaml:",inline"`
	TrimConfig   `yaml:",inline"`
	// Domains are the streams that are cut into shards: the one list for those who read and those who reclaim.
	Domains []DomainConfig `yaml:"domains"`
}

// ReadDefaults are the settings of the readers behind Plugin.Source.
type ReadDefaults struct {
	Slots           int              `yaml:"slots"`            // messages in hand a source, where the route asks for nothing else
	BatchSize       int              `yaml:"batch_size"`       // COUNT of one XREADGROUP
	PollInterval    time.Duration    `yaml:"poll_interval"`    // the longest sleep between two reads of an empty stream
	FirstPoll       time.Duration    `yaml:"first_poll"`       // the sleep after the first empty read; doubles up to poll_interval
	MinIdle         time.Duration    `yaml:"min_idle"`         // after which others may reclaim an entry; the same in every instance
	LongestHold     time.Duration    `yaml:"longest_hold"`     // after which an entry in hand is no longer kept alive; 0: never
	AckCount        int              `yaml:"ack_count"`        // ids in one XACK
	AckInterval     time.Duration    `yaml:"ack_interval"`     // the longest wait of an acknowledgement for company
	MaxRedeliveries int              `yaml:"max_redeliveries"` // of a nacked entry by the same reader, before it is left pending
	Redelivery      pipeline.Backoff `yaml:"redelivery"`       // the delay before each of them
	ReclaimInterval time.Duration    `yaml:"reclaim_interval"` // how often a source looks for others' idle entries; 0: leave it to plugins/reclaim
	CloseTimeout    time.Duration    `yaml:"close_timeout"`    // of a subscription that is closed without having been drained
}

// DefaultClientConfig returns the defaults of a client: one local server.
func DefaultClientConfig() ClientConfig {
	return ClientConfig{
		Addrs:        []string{"127.0.0.1:6379"},
		DialTimeout:  3 * time.Second,
		ReadTimeout:  3 * time.Second,
		WriteTimeout: 3 * time.Second,
		MaxRetries:   3,
	}
}

// SetDefaults gives an optional section its defaults before a settings file is laid over them.
func (c *ClientConfig) SetDefaults() { *c = DefaultClientConfig() }

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{ClientConfig: DefaultClientConfig(), ReadDefaults: ReadDefaults{
		Slots:           16,
		BatchSize:       10,
		PollInterval:    100 * time.Millisecond,
		FirstPoll:       5 * time.Millisecond,
		MinIdle:         5 * time.Minute,
		LongestHold:     30 * time.Minute,
		AckCount:        100,
		AckInterval:     20 * time.Millisecond,
		MaxRedeliveries: 5,
		Redelivery:      pipeline.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second},
		ReclaimInterval: time.Minute,
		CloseTimeout:    5 * time.Second,
	}, TrimConfig: TrimConfig{Trim: true, ForeignGroupGrace: 5 * time.Minute}}
}

// Validate reports every mistake at once.
func (c Config) Validate() error {
	return errors.Join(c.ClientConfig.Validate(), c.ReadDefaults.Validate(), c.TrimConfig.Validate(), validateDomains(c.Domains))
}

// Validate reports every mistake at once.
func (c ClientConfig) Validate() error {
	var p problems
	p.check(len(c.Addrs) > 0, "addrs", "must name at least one host:port")
	for i, a := range c.Addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			p.add(fmt.Sprintf("addrs[%d]", i), "must be host:port, got %q", a)
		}
	}
	p.check(c.MasterName == "" || !c.Cluster, "cluster", "must be false when master_name is set")
	p.check(c.MasterName != "" || c.Cluster || len(c.Addrs) <= 1, "addrs", "must be one address unless cluster is true or master_name is set, got %d", len(c.Addrs))
	p.check(c.DB >= 0, "db", "must be >= 0, got %d", c.DB)
	p.check(c.DB == 0 || !c.Cluster, "db", "must be 0 in a cluster, got %d", c.DB)
	p.check(c.PoolSize >= 0, "pool_size", "must be >= 0, got %d", c.PoolSize)
	p.check(c.DialTimeout > 0, "dial_timeout", "must be > 0, got %s", c.DialTimeout)
	p.check(c.ReadTimeout > 0, "read_timeout", "must be > 0, got %s", c.ReadTimeout)
	p.check(c.WriteTimeout > 0, "write_timeout", "must be > 0, got %s", c.WriteTimeout)
	p.check(c.PoolTimeout >= 0, "pool_timeout", "must be >= 0, got %s", c.PoolTimeout)
	p.check(c.MaxRetries >= -1, "max_retries", "must be >= -1, got %d", c.MaxRetries)
	p.check((c.TLS.CertFile == "") == (c.TLS.KeyFile == ""), "tls.cert_file", "must be set together with tls.key_file")
	if _, err := c.TLS.load(); err != nil {
		p = append(p, err)
	}
	plain := !c.TLS.Enabled && !c.AllowPlaintextCredentials && !pipeline.Loopback(c.Addrs...)
	const without = "must not go without TLS to servers on other machines: set tls.enabled: true, or allow_plaintext_credentials: true in this section"
	p.check(!plain || c.Password.IsZero(), "password", without)
	p.check(!plain || c.SentinelPassword.IsZero(), "sentinel_password", without)
	return p.err()
}

// Validate reports every mistake at once.
func (c ReadDefaults) Validate() error {
	var p problems
	p.check(c.Slots > 0, "slots", "must be > 0, got %d", c.Slots)
	p.check(c.BatchSize > 0, "batch_size", "must be > 0, got %d", c.BatchSize)
	p.check(c.PollInterval > 0, "poll_interval", "must be > 0, got %s", c.PollInterval)
	p.check(c.FirstPoll > 0, "first_poll", "must be > 0, got %s", c.FirstPoll)
	p.check(c.MinIdle >= time.Millisecond, "min_idle", "must be >= 1ms, got %s", c.MinIdle)
	p.check(c.LongestHold >= 0, "longest_hold", "must be >= 0, got %s", c.LongestHold)
	p.check(c.AckCount > 0 && c.AckCount <= maxIDs, "ack_count", "must be 1..%d, got %d", maxIDs, c.AckCount)
	p.check(c.AckInterval > 0, "ack_interval", "must be > 0, got %s", c.AckInterval)
	p.check(c.MaxRedeliveries >= 0, "max_redeliveries", "must be >= 0, got %d", c.MaxRedeliveries)
	p.check(c.ReclaimInterval >= 0, "reclaim_interval", "must be >= 0, got %s", c.ReclaimInterval)
	p.check(c.CloseTimeout > 0, "close_timeout", "must be > 0, got %s", c.CloseTimeout)
	return p.err()
}

// load returns the TLS settings of a client, or nil when encryption is off. Its error is a *pipeline.FieldError.
func (c TLSConfig) load() (*tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, &pipeline.FieldError{Path: "tls.ca_file", Problem: err.Error()}
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &pipeline.FieldError{Path: "tls.ca_file", Problem: "no certificate in " + c.CAFile}
		}
	}
	if c.CertFile != "" && c.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, &pipeline.FieldError{Path: "tls.cert_file", Problem: err.Error()}
		}
		out.Certificates = []tls.Certificate{cert}
	}
	return out, nil
}

// problems collects wrong settings.
type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
}

func (p *problems) check(ok bool, path, format string, args ...any) {
	if !ok {
		p.add(path, format, args...)
	}
}

func (p problems) err() error { return errors.Join(p...) }
