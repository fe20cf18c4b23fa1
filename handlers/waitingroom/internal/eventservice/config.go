package eventservice

import (
	"net/url"
	"time"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.waitingroom.event_service.
type Config struct {
	// URL is the address before /events/<id>. Empty: there is no Event Service.
	URL               string `yaml:"url"`
	httpclient.Config `yaml:",inline"`
	// Timeout bounds one call.
	Timeout time.Duration `yaml:"timeout"`
	// Cache is how long the answer is kept that an event does not exist, or has no number of seats.
	Cache time.Duration `yaml:"cache"`
}

// DefaultConfig returns the settings of the README, without a URL.
func DefaultConfig() Config { return Config{Timeout: 2 * time.Second, Cache: time.Minute} }

// Validate reports all errors at once.
func (c *Config) Validate() error {
	var p setting.Problems
	// The value is not repeated: a mistyped URL may hold a password.
	u, err := url.Parse(c.URL)
	p.Check(c.URL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "",
		"url", "must be http:// or https:// with a host, and without user, query and fragment")
	p.Check(c.Timeout > 0 && c.Timeout <= maxTimeout, "timeout", "must be > 0 and at most %s, got %s", maxTimeout, c.Timeout)
	p.Positive("cache", c.Cache)
	p = append(p, c.Config.Validate(c.URL, false))
	return p.Err()
}

// maxTimeout is less than plugins.web allows for an answer.
const maxTimeout = 10 * time.Second
