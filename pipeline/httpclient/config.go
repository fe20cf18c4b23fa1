package httpclient

import (
	"net/url"
	"strings"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config says whom the client of an HTTP API trusts, and how it proves who it is. It belongs to the
// settings section of that API. The zero value trusts the authorities of the system, and sends neither a
// certificate nor a token.
type Config struct {
	// CAFile has the certificates (PEM) to trust for https instead of those of the system.
	CAFile string `yaml:"ca_file"`
	// CertFile and KeyFile (PEM) are the certificate of the client.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// OAuth2 gets the tokens of the requests.
	OAuth2 OAuth2 `yaml:"oauth2"`
}

// OAuth2 are the client credentials with which tokens are fetched (RFC 6749, section 4.4). Without a
// TokenURL there are none.
type OAuth2 struct {
	TokenURL string `yaml:"token_url"`
	ClientID string `yaml:"client_id"`
	// ClientSecret may be empty with a certificate of the client (RFC 8705).
	ClientSecret setting.Secret `yaml:"client_secret"`
	Scopes       []string       `yaml:"scopes"`
	// Audience is sent as the parameter audience, which some token endpoints want.
	Audience string `yaml:"audience"`
}

// Enabled reports whether requests have tokens.
func (o OAuth2) Enabled() bool { return o.TokenURL != "" }

// Called returns the addresses that the client of the API at api calls: the API, and what gives it tokens. They are
// for pipeline.ServersOf.
func (c Config) Called(api string) []string {
	if !c.OAuth2.Enabled() {
		return []string{api}
	}
	return []string{api, c.OAuth2.TokenURL}
}

// Validate reports all errors at once; it reads the files. address is that of the API. plaintext accepts
// tokens that are sent to another machine without encryption.
func (c Config) Validate(address string, plaintext bool) error {
	var p setting.Problems
	p = append(p, c.tls().Validate())
	o := c.OAuth2
	if !o.Enabled() {
		p.Check(o.ClientID == "" && o.ClientSecret.IsZero() && len(o.Scopes) == 0 && o.Audience == "", "oauth2.token_url",
			"must be set with the other settings of oauth2")
		return p.Err()
	}
	// The values are not repeated: a mistyped address may hold a password.
	u, err := url.Parse(o.TokenURL)
	p.Check(err == nil && u.Host != "" && u.User == nil && u.Fragment == "" && secret(u), "oauth2.token_url",
		"must be an https address without user and fragment, because the secret is sent to it")
	p.Check(o.ClientID != "", "oauth2.client_id", "must be set with token_url")
	p.Check(!o.ClientSecret.IsZero() || c.CertFile != "", "oauth2.client_secret", "must be set with token_url, unless cert_file proves who the client is")
	p.Check(validSecret(o.ClientSecret.Reveal()) == nil, "oauth2.client_secret", "must have one line")
	for _, scope := range o.Scopes {
		p.Check(scope != "" && !strings.ContainsAny(scope, " \t\r\n"), "oauth2.scopes", "must be words, got %q", scope)
	}
	u, err = url.Parse(address)
	p.Check(plaintext || err != nil || secret(u), "url", "must be https:// because the requests have tokens: over http:// they cross the network in plain text")
	return p.Err()
}

// secret reports whether nobody on the network reads what is sent to u.
func secret(u *url.URL) bool {
	return u.Scheme == "https" || u.Scheme == "http" && setting.Loopback(u.Host)
}

func (c Config) tls() setting.TLS {
	return setting.TLS{Enabled: true, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
}
