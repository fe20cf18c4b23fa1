package redis

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

// ClientConfig says how to reach Redis or Valkey: standalone, Sentinel or Cluster.
type ClientConfig struct {
	// Addrs are host:port. Several are the seeds of a cluster, or the sentinels.
	Addrs            []string       `yaml:"addrs"`
	MasterName       string         `yaml:"master_name"` // not empty: Addrs are sentinels
	Cluster          bool           `yaml:"cluster"`     // Addrs, or one endpoint, are a cluster
	Username         string         `yaml:"username"`    // ACL user; empty: the default user
	Password         setting.Secret `yaml:"password"`
	SentinelUsername string         `yaml:"sentinel_username"`
	SentinelPassword setting.Secret `yaml:"sentinel_password"`
	DB               int            `yaml:"db"` // database number; 0 only in a cluster
	TLS              setting.TLS    `yaml:"tls"`
	// AllowPlaintextCredentials accepts a password without TLS for servers on other machines.
	AllowPlaintextCredentials bool `yaml:"allow_plaintext_credentials"`

	PoolSize     int           `yaml:"pool_size"`     // connections per server; 0: ten per CPU
	DialTimeout  time.Duration `yaml:"dial_timeout"`  // of one connection attempt
	ReadTimeout  time.Duration `yaml:"read_timeout"`  // of one reply
	WriteTimeout time.Duration `yaml:"write_timeout"` // of one command
	PoolTimeout  time.Duration `yaml:"pool_timeout"`  // for a connection; 0: ReadTimeout + 1s
	// MaxRetries is how often the client re-sends a command after a network error or timeout. An
	// XADD that is re-sent may be in the stream twice. Reads are never re-sent. -1: no command is
	// re-sent.
	MaxRetries int `yaml:"max_retries"`
}

// Overrides returns the settings with which another process on this machine reaches the server, by
// their path.
func (c ClientConfig) Overrides() map[string]any {
	set := map[string]any{}
	for key, value := range map[string]any{
		"addrs": c.Addrs, "cluster": c.Cluster, "db": c.DB, "username": c.Username, "password": c.Password.Reveal(),
		"master_name": c.MasterName, "sentinel_username": c.SentinelUsername, "sentinel_password": c.SentinelPassword.Reveal(),
		"tls.enabled": c.TLS.Enabled, "tls.ca_file": c.TLS.CAFile, "tls.cert_file": c.TLS.CertFile, "tls.key_file": c.TLS.KeyFile,
		"tls.server_name": c.TLS.ServerName, "tls.insecure_skip_verify": c.TLS.InsecureSkipVerify,
		"allow_plaintext_credentials": c.AllowPlaintextCredentials,
	} {
		set["plugins.redis."+key] = value
	}
	return set
}

// Config is the settings section of the plugin (plugins.redis).
type Config struct {
	ClientConfig `yaml:",inline"`
	poll.Config  `yaml:",inline"` // of the readers behind Plugin.Source and Domain.Source
	// ReclaimInterval is how often a source claims idle entries of other consumers, except those of domains where
	// plugins/reclaim does it.
	ReclaimInterval time.Duration `yaml:"reclaim_interval"`
	// CloseTimeout bounds the close of a subscription that was not drained.
	CloseTimeout time.Duration `yaml:"close_timeout"`
	TrimConfig   `yaml:",inline"`
	// Domains are the streams that are divided into shards.
	Domains []DomainConfig `yaml:"domains"`
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

// SetDefaults implements the defaults of an optional section.
func (c *ClientConfig) SetDefaults() { *c = DefaultClientConfig() }

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		ClientConfig: DefaultClientConfig(), Config: poll.DefaultConfig(),
		ReclaimInterval: pubsub.DefaultReclaimInterval, CloseTimeout: pubsub.DefaultCloseTimeout,
		TrimConfig: TrimConfig{Trim: true, ForeignGroupGrace: 5 * time.Minute},
	}
}

// Validate reports all errors at once.
func (c Config) Validate() error {
	var p setting.Problems
	p.Positive("reclaim_interval", c.ReclaimInterval) // without it, entries of an instance that has ended would stay for good
	p.Positive("close_timeout", c.CloseTimeout)
	return errors.Join(c.ClientConfig.Validate(), c.Config.Validate(), p.Err(), c.TrimConfig.Validate(), validateDomains(c.Domains))
}

// Validate reports all errors at once.
func (c ClientConfig) Validate() error {
	var p setting.Problems
	p.Check(len(c.Addrs) > 0, "addrs", "must name at least one host:port")
	for i, a := range c.Addrs {
		_, _, err := net.SplitHostPort(a)
		p.Check(err == nil, fmt.Sprintf("addrs[%d]", i), "must be host:port, got %q", a)
	}
	p.Check(c.MasterName == "" || !c.Cluster, "cluster", "must be false when master_name is set")
	p.Check(c.MasterName != "" || c.Cluster || len(c.Addrs) <= 1, "addrs", "must be one address unless cluster is true or master_name is set, got %d", len(c.Addrs))
	p.Check(c.DB >= 0, "db", "must be >= 0, got %d", c.DB)
	p.Check(c.DB == 0 || !c.Cluster, "db", "must be 0 in a cluster, got %d", c.DB)
	p.Check(c.PoolSize >= 0, "pool_size", "must be >= 0, got %d", c.PoolSize)
	p.Positive("dial_timeout", c.DialTimeout)
	p.Positive("read_timeout", c.ReadTimeout)
	p.Positive("write_timeout", c.WriteTimeout)
	p.Check(c.PoolTimeout >= 0, "pool_timeout", "must be >= 0, got %s", c.PoolTimeout)
	p.Check(c.MaxRetries >= -1, "max_retries", "must be >= -1, got %d", c.MaxRetries)
	p.Under("tls", c.TLS.Validate())
	plain := !c.TLS.Enabled && !c.AllowPlaintextCredentials && !setting.Loopback(c.Addrs...)
	const without = "must not go without TLS to servers on other machines: set tls.enabled: true, or allow_plaintext_credentials: true in this section"
	p.Check(!plain || c.Password.IsZero(), "password", without)
	p.Check(!plain || c.SentinelPassword.IsZero(), "sentinel_password", without)
	return p.Err()
}
