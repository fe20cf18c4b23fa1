package signin

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/reach"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config says how a server finds out the user of a request.
type Config struct {
	// Header is the header in which a trusted proxy names the user.
	Header string `yaml:"header"`
	// JWKSFile or JWKSURL have the public keys of the site's sign-in.
	JWKSFile string `yaml:"jwks_file"`
	JWKSURL  string `yaml:"jwks_url"`
	// JWKSClient says how the keys of JWKSURL are fetched.
	JWKSClient httpclient.Config `yaml:"jwks_client"`
	// Issuer and Audience are those of the tokens of the sign-in.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
}

// HasKeys reports whether tokens are verified.
func (a *Config) HasKeys() bool { return a.JWKSFile != "" || a.JWKSURL != "" }

// Declare names the servers that fetching the keys calls, in the Register of the plugin, and has doctor examine them.
func (a *Config) Declare(r *pipeline.Registry, plugin string) {
	if a.JWKSURL != "" {
		reach.Servers{Name: plugin, URL: a.JWKSURL, Client: a.JWKSClient}.Register(r)
	}
}

// Validate reports all errors at once; it reads the files. Proxies says whether there are trusted ones.
func (a *Config) Validate(proxies bool) error {
	var p setting.Problems
	p.Check(a.Header == "" || proxies, "header", "must be empty without trusted_proxies: any client can send it")
	p.Check(a.Header == "" || CanName(a.Header), "header",
		"must be a header that only the proxy writes, such as X-User: %q has another meaning or is no name of a header", a.Header)
	if !a.HasKeys() {
		return p.Err()
	}
	p.Check(a.JWKSFile == "" || a.JWKSURL == "", "jwks_file", "must be empty with jwks_url")
	p.Check(a.Issuer != "", "issuer", "must be set with the keys of a sign-in")
	p.Check(a.Audience != "", "audience", "must be set with the keys of a sign-in")
	if a.JWKSFile != "" {
		_, err := followKeySet(a.JWKSFile, "", nil)
		p.Check(err == nil, "jwks_file", "%s", err)
	}
	if a.JWKSURL != "" {
		u, err := url.Parse(a.JWKSURL)
		p.Check(err == nil && u.Host != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http" && setting.Loopback(u.Host)), "jwks_url",
			"must be an https address without a user, got %q", redacted(u))
		p.Under("jwks_client", a.JWKSClient.Validate(a.JWKSURL, false))
	}
	return p.Err()
}

// redacted returns an address without its password, and nothing of what is no address.
func redacted(u *url.URL) string {
	if u == nil {
		return ""
	}
	return u.Redacted()
}

// ValidateProxies reports what is wrong with the networks of trusted proxies, which name the user in the
// header if that is not empty.
func ValidateProxies(proxies []string, header string) error {
	var p setting.Problems
	for i, proxy := range proxies {
		_, err := network(proxy)
		p.Check(err == nil, fmt.Sprintf("trusted_proxies[%d]", i), "must be a network such as 10.0.0.0/8, or an address, got %q", proxy)
	}
	p.Check(header == "" || !anybody(proxies), "trusted_proxies",
		"must be the networks of your proxies with auth.header: any client in these networks can name any user, and they contain a sixteenth of all addresses or more, got %q", proxies)
	return p.Err()
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, section 5.1

// CanName reports whether a proxy can put a user into a header. HTTP and browsers give these
// another meaning, and net/http removes Host.
func CanName(header string) bool {
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
	sorted.By(all, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() }) // a network comes before its parts
	shares := map[int]float64{}                                                // by the length of addresses
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

// Networks are those of trusted proxies.
type Networks []netip.Prefix

// NewNetworks reads networks, and addresses as networks of one address.
func NewNetworks(proxies []string) (Networks, error) {
	var all Networks
	var errs []error
	for _, text := range proxies {
		n, err := network(text)
		all, errs = append(all, n.Masked()), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// Contain reports whether an address is in one of the networks.
func (ns Networks) Contain(a netip.Addr) bool {
	return slices.ContainsFunc(ns, func(n netip.Prefix) bool { return n.Contains(a) })
}
