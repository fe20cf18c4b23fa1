package web

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.web.
type Config struct {
	// Listen is the address of the server, host:port; port 0 takes a free one.
	Listen string `yaml:"listen"`
	TLS    TLS    `yaml:"tls"`
	// AllowedOrigins are other origins. Their pages may use the handlers that permit it.
	AllowedOrigins []string `yaml:"allowed_origins"`
	// TrustedProxies are the networks whose X-Forwarded-For and user header are used.
	TrustedProxies []string `yaml:"trusted_proxies"`
	Auth           Auth     `yaml:"auth"`
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

// TLS is the certificate of the server. Without it the server speaks HTTP without encryption.
type TLS struct {
	CertFile string `yaml:"cert_file"` // PEM, with the chain
	KeyFile  string `yaml:"key_file"`  // PEM
}

// Auth says how the server finds out the user of a request.
type Auth struct {
	// Header is the header in which a trusted proxy names the user.
	Header string `yaml:"header"`
	// JWKSFile or JWKSURL have the public keys of the site's sign-in.
	JWKSFile string `yaml:"jwks_file"`
	JWKSURL  string `yaml:"jwks_url"`
	// Issuer and Audience are those of the tokens of the sign-in.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
}

// DefaultConfig returns the settings of the README.
func DefaultConfig() Config {
	return Config{Listen: "127.0.0.1:8080", MaxStreamsPerUser: 10, DrainWindow: 10 * time.Second}
}

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	var p setting.Problems
	_, port, err := net.SplitHostPort(c.Listen)
	p.Check(err == nil && port != "", "listen", "must be host:port, got %q", c.Listen)
	if _, err := c.TLS.Load(); err != nil {
		p = append(p, err)
	}
	for i, origin := range c.AllowedOrigins {
		u, err := url.Parse(origin)
		p.Check(err == nil && u.Host != "" && origin == u.Scheme+"://"+strings.ToLower(u.Host), fmt.Sprintf("allowed_origins[%d]", i),
			"must be an origin such as https://shop.example, got %q", origin)
	}
	for i, proxy := range c.TrustedProxies {
		_, err := network(proxy)
		p.Check(err == nil, fmt.Sprintf("trusted_proxies[%d]", i), "must be a network such as 10.0.0.0/8, or an address, got %q", proxy)
	}
	p.Under("auth", c.Auth.validate(len(c.TrustedProxies) > 0))
	p.Check(c.Auth.Header == "" || !anybody(c.TrustedProxies), "trusted_proxies",
		"must be the networks of your proxies with auth.header: any client in these networks can name any user, and they contain a sixteenth of all addresses or more, got %q", c.TrustedProxies)
	p.Check(c.MaxStreams >= 0, "max_streams", "must be >= 0, got %d", c.MaxStreams)
	p.Check(c.MaxConnections >= 0, "max_connections", "must be >= 0, got %d", c.MaxConnections)
	p.Check(c.MaxConnectionsPerAddress >= 0, "max_connections_per_address", "must be >= 0, got %d", c.MaxConnectionsPerAddress)
	p.Check(c.MaxStreamsPerUser > 0, "max_streams_per_user", "must be > 0, got %d", c.MaxStreamsPerUser)
	p.Check(c.DrainDelay >= 0, "drain_delay", "must be >= 0, got %s", c.DrainDelay)
	p.Positive("drain_window", c.DrainWindow)
	return p.Err()
}

func (a *Auth) validate(proxies bool) error {
	var p setting.Problems
	p.Check(a.Header == "" || proxies, "header", "must be empty without trusted_proxies: any client can send it")
	p.Check(a.Header == "" || canNameUser(a.Header), "header",
		"must be a header that only the proxy writes, such as X-User: %q has another meaning or is no name of a header", a.Header)
	if a.JWKSFile == "" && a.JWKSURL == "" {
		return p.Err()
	}
	p.Check(a.JWKSFile == "" || a.JWKSURL == "", "jwks_file", "must be empty with jwks_url")
	p.Check(a.Issuer != "", "issuer", "must be set with the keys of a sign-in")
	p.Check(a.Audience != "", "audience", "must be set with the keys of a sign-in")
	if a.JWKSFile != "" {
		_, _, err := readKeySet(a.JWKSFile)
		p.Check(err == nil, "jwks_file", "%s", err)
	}
	if a.JWKSURL != "" {
		u, err := url.Parse(a.JWKSURL)
		p.Check(err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && setting.Loopback(u.Host)), "jwks_url",
			"must be an https address, got %q", a.JWKSURL)
	}
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

// Load reads the files and returns the server's TLS configuration, nil without encryption. Its error is a
// *setting.FieldError below the section that contains tls.
func (t TLS) Load() (*tls.Config, error) {
	if t.CertFile == "" && t.KeyFile == "" {
		return nil, nil
	}
	if t.CertFile == "" || t.KeyFile == "" {
		return nil, &setting.FieldError{Path: "tls.cert_file", Problem: "must be set together with key_file"}
	}
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, &setting.FieldError{Path: "tls.cert_file", Problem: err.Error()}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}, nil
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, section 5.1

// canNameUser reports whether a proxy can put a user into a header. HTTP and browsers give these
// another meaning, and net/http removes Host.
func canNameUser(header string) bool {
	name := http.CanonicalHeaderKey(header)
	for _, prefix := range []string{"Accept", "Access-Control-", "Content-", "Proxy-", "Sec-", "X-Forwarded-"} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return headerName.MatchString(header) && !slices.Contains([]string{
		"Authorization", "Cache-Control", "Connection", "Cookie", "Date", "Expect", "Forwarded", "Host", "Keep-Alive", "Last-Event-Id",
		"Origin", "Pragma", "Range", "Referer", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Via",
	}, name)
}

// anybody reports whether networks contain a sixteenth of all IPv4 or IPv6 addresses. All private
// networks are less, and all public IPv6 addresses are more.
func anybody(networks []string) bool {
	var all []netip.Prefix
	for _, text := range networks {
		if n, err := network(text); err == nil {
			all = append(all, n.Masked())
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }) // a network comes before its parts
	shares := map[int]float64{}                                                      // by the length of addresses
	for i, n := range all {
		if !slices.ContainsFunc(all[:i], n.Overlaps) {
			shares[n.Addr().BitLen()] += math.Ldexp(1, -n.Bits())
		}
	}
	return shares[32] >= 1./16 || shares[128] >= 1./16
}

// network reads a network, or an address as the network of one address.
func network(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return addr.Prefix(addr.BitLen())
}

func (c *Config) networks() ([]netip.Prefix, error) {
	var all []netip.Prefix
	var errs []error
	for _, text := range c.TrustedProxies {
		n, err := network(text)
		all, errs = append(all, n.Masked()), append(errs, err)
	}
	return all, errors.Join(errs...)
}
