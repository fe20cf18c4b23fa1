package oncehttp

import (
	"net/url"
	"reflect"
	"time"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the settings of a client, a part of the settings of its plugin. Only URL has no default. The
// zero value is not valid: see New.
type Config struct {
	// URL is scheme, host and perhaps a path prefix.
	URL string `yaml:"url"`
	// Config says whom the client trusts, and how it proves who it is. Its tokens exclude Token.
	httpclient.Config `yaml:",inline"`
	// CallTimeout bounds one call from its start to the last byte of the answer. A context
	// that ends sooner wins.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// ConnectTimeout bounds dialing, and again the TLS handshake.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// Concurrency is the number of slots (Client.Slot), and of idle connections.
	Concurrency int `yaml:"concurrency"`
	// IdleConnTimeout closes an unused connection. Keep it under the server's own.
	IdleConnTimeout time.Duration `yaml:"idle_conn_timeout"`
	// MaxRetryAfter caps a Retry-After.
	MaxRetryAfter time.Duration `yaml:"max_retry_after"`
	// DefaultRetryAfter is the wait after a 429 without a readable Retry-After.
	DefaultRetryAfter time.Duration `yaml:"default_retry_after"`
	// Token is the bearer token. Empty: no Authorization header. A file is read again within a second
	// of its change, and after a 401 at once.
	Token setting.Secret `yaml:"token"`
	// AllowPlaintextCredentials accepts a token with an http:// URL of another machine.
	AllowPlaintextCredentials bool          `yaml:"allow_plaintext_credentials"`
	Breaker                   BreakerConfig `yaml:"breaker"`
}

// BreakerConfig is the settings of the circuit breaker. It opens when at least MinCalls ended
// within Window, and FailureRatio of their keys failed, and at least three. After OpenDelay it lets
// probes through. It closes after HalfOpenSuccesses of them in a row.
type BreakerConfig struct {
	FailureRatio      float64       `yaml:"failure_ratio"`
	MinCalls          int           `yaml:"min_calls"`
	Window            time.Duration `yaml:"window"`
	OpenDelay         time.Duration `yaml:"open_delay"`
	HalfOpenSuccesses int           `yaml:"half_open_successes"`
}

// DefaultConfig returns the defaults, without a URL.
func DefaultConfig() Config {
	return Config{
		CallTimeout:       3 * time.Second,
		ConnectTimeout:    time.Second,
		Concurrency:       256,
		IdleConnTimeout:   30 * time.Second,
		MaxRetryAfter:     time.Minute,
		DefaultRetryAfter: time.Second,
		Breaker: BreakerConfig{
			FailureRatio:      0.5,
			MinCalls:          20,
			Window:            10 * time.Second,
			OpenDelay:         5 * time.Second,
			HalfOpenSuccesses: 3,
		},
	}
}

// Validate reports all errors at once, as setting.FieldError values.
func (c *Config) Validate() error {
	var p setting.Problems
	// The value is not repeated: a mistyped URL may hold a password.
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		p.Check(false, "url", "must be set")
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		p.Check(false, "url", "must be http:// or https:// with a host")
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		p.Check(false, "url", "must have no user, query or fragment")
	case u.Scheme == "http" && c.hasCredential() && !c.AllowPlaintextCredentials && !setting.Loopback(u.Host):
		p.Check(false, "url", "must be https:// because there is a token: over http:// it crosses the network in plain text; or set allow_plaintext_credentials: true in this section")
	}
	p.Positive("call_timeout", c.CallTimeout)
	p.Positive("connect_timeout", c.ConnectTimeout)
	p.Positive("idle_conn_timeout", c.IdleConnTimeout)
	p.Positive("max_retry_after", c.MaxRetryAfter)
	p.Positive("default_retry_after", c.DefaultRetryAfter)
	p.Check(c.Concurrency > 0, "concurrency", "must be > 0, got %d", c.Concurrency)
	p.Check(checkToken(c.Token.Reveal()) == nil, "token", "must have one line")
	p.Check(c.Token.IsZero() || !c.OAuth2.Enabled(), "token", "must be empty with oauth2.token_url: both are sent in the header Authorization")
	p = append(p, c.Config.Validate(c.URL, true)) // its check of the url is the one above
	b := c.Breaker
	p.Check(b.FailureRatio > 0 && b.FailureRatio <= 1, "breaker.failure_ratio", "must be > 0 and at most 1, got %v", b.FailureRatio)
	p.Check(b.MinCalls > 0, "breaker.min_calls", "must be > 0, got %d", b.MinCalls)
	p.Check(b.Window >= 100*time.Millisecond, "breaker.window", "must be at least 100ms, got %s", b.Window)
	p.Positive("breaker.open_delay", b.OpenDelay)
	p.Check(b.HalfOpenSuccesses > 0, "breaker.half_open_successes", "must be > 0, got %d", b.HalfOpenSuccesses)
	return p.Err()
}

// hasCredential reports whether each request has a token.
func (c *Config) hasCredential() bool { return !c.Token.IsZero() || c.OAuth2.Enabled() }

func (c *Config) isZero() bool { return reflect.ValueOf(*c).IsZero() }
