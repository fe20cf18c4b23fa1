package webhook

import (
	"net/url"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.webhook of the settings.
type Config struct {
	// Topic is the Kafka topic to read. Topic-retry and Topic-dead belong to it.
	Topic string `yaml:"topic"`
	// URL is the address that gets the records.
	URL               string `yaml:"url"`
	httpclient.Config `yaml:",inline"`
	// Secret is the key of the signature.
	Secret setting.Secret `yaml:"secret"`
	// Timeout bounds one request.
	Timeout time.Duration `yaml:"timeout"`
	// MaxRetries is how many retries follow the first attempt.
	MaxRetries int `yaml:"max_retries"`
	// Retry is the delay before a retry.
	Retry pipeline.Backoff `yaml:"retry"`
}

// defaultConfig returns the defaults. URL and Secret have none.
func defaultConfig() Config {
	return Config{
		Topic: "webhook", Timeout: 5 * time.Second, MaxRetries: 8,
		Retry: pipeline.Backoff{First: time.Second, Max: 5 * time.Minute},
	}
}

// EnabledByDefault returns false: the plugin needs an address.
func (*Config) EnabledByDefault() bool { return false }

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	// The value is not repeated: a mistyped address may hold a password.
	u, err := url.Parse(c.URL)
	p.Check(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", "url", "must be an http or https address")
	p = append(p, c.Config.Validate(c.URL, false))
	p.Check(c.Topic != "", "topic", "must be set")
	p.Check(!c.Secret.IsZero(), "secret", "must be set: the receiver checks the signature with it")
	p.Positive("timeout", c.Timeout)
	p.Check(c.MaxRetries > 0, "max_retries", "must be > 0, got %d", c.MaxRetries)
	p.Check(c.Retry.First >= 0, "retry.first", "must be >= 0, got %s", c.Retry.First)
	p.Check(c.Retry.Max >= 0, "retry.max", "must be >= 0, got %s", c.Retry.Max)
	return p.Err()
}
