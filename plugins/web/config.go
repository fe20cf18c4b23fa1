package web

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Config is the section plugins.web.
type Config struct {
	// Listen is the address of the server, host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
	// TLS is the certificate of the server. Without it the server speaks HTTP without encryption.
	TLS setting.ServerTLS `yaml:"tls"`
	// AllowedOrigins are other origins. Their pages may use the handlers that permit it.
	AllowedOrigins []string `yaml:"allowed_origins"`
	// TrustedProxies are the networks whose X-Forwarded-For and user header are used.
	TrustedProxies []string      `yaml:"trusted_proxies"`
	Auth           signin.Config `yaml:"auth"`
	// MaxStreams is the number of open streams of the process. Zero: 20,000, or nine tenths of the
	// connections that the limit of file descriptors permits.
	MaxStreams int `yaml:"max_streams"`
	// MaxStreamsPerUser is the number of open streams of a user, of the sign-in or of a token, or of an
	// address without a user.
	MaxStreamsPerUser int `yaml:"max_streams_per_user"`
	// MaxConnections is the number of open connections of the process. Zero: twice the streams and
	// at least 100 more, or fewer if the limit of file descriptors permits fewer.
	MaxConnections int `yaml:"max_connections"`
	// MaxConnectionsPerAddress is the number of open connections of an address that is neither of a
	// trusted proxy nor of this machine. Zero: a tenth of MaxConnections, and at least 100 (half of
	// MaxConnections if that is less) and MaxStreamsPerUser.
	MaxConnectionsPerAddress int `yaml:"max_connections_per_address"`
	// DrainDelay is the time between the 503 of /readyz and the first refusal.
	DrainDelay time.Duration `yaml:"drain_delay"`
	// DrainWindow is the time over which the open streams are closed.
	DrainWindow time.Duration `yaml:"drain_window"`
}

// defaultConfig returns the settings of the README.
func defaultConfig() Config {
	return Config{Listen: "127.0.0.1:8080", MaxStreamsPerUser: 10, DrainWindow: 10 * time.Second}
}

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	var p setting.Problems
	_, port, err := net.SplitHostPort(c.Listen)
	p.Check(err == nil && port != "", "listen", "must be host:port, got %q", c.Listen)
	p.Under("tls", c.TLS.Validate())
	for i, origin := range c.AllowedOrigins {
		u, err := url.Parse(origin)
		p.Check(err == nil && u.Host != "" && origin == u.Scheme+"://"+strings.ToLower(u.Host), fmt.Sprintf("allowed_origins[%d]", i),
			"must be an origin such as https://shop.example, got %q", origin)
	}
	p = append(p, signin.ValidateProxies(c.TrustedProxies, c.Auth.Header))
	p.Under("auth", c.Auth.Validate(len(c.TrustedProxies) > 0))
	p.Check(c.MaxStreams >= 0, "max_streams", "must be >= 0, got %d", c.MaxStreams)
	p.Check(c.MaxConnections >= 0, "max_connections", "must be >= 0, got %d", c.MaxConnections)
	p.Check(c.MaxConnectionsPerAddress >= 0, "max_connections_per_address", "must be >= 0, got %d", c.MaxConnectionsPerAddress)
	p.Check(c.MaxStreamsPerUser > 0, "max_streams_per_user", "must be > 0, got %d", c.MaxStreamsPerUser)
	p.Check(c.DrainDelay >= 0, "drain_delay", "must be >= 0, got %s", c.DrainDelay)
	p.Positive("drain_window", c.DrainWindow)
	return p.Err()
}

// ValidateIn checks that streams can be closed before the process must have stopped (app.Placed).
func (p *Plugin) ValidateIn(where app.Where) error {
	var wrong setting.Problems
	drain := p.config.DrainDelay + p.config.DrainWindow
	wrong.Check(len(where.NeededBy) == 0 || drain < where.StopTimeout/2, "drain_window",
		"must be, with drain_delay, less than half of stop_timeout (%s), got %s", where.StopTimeout, drain)
	return wrong.Err()
}
