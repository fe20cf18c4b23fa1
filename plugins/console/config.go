package console

import (
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Config is the section plugins.console.
type Config struct {
	// Listen is the address of the server, host:port; port 0 takes a free one. Beyond loopback it needs
	// UsersFile or Auth.
	Listen string `yaml:"listen"`
	// Prefix is the path below which a proxy shows the console, such as /millrace. The console answers there
	// and at its root, so a proxy may remove the prefix or not.
	Prefix string `yaml:"prefix"`
	// UsersFile has the users who may sign in with a password, in the format of htpasswd with bcrypt
	// (htpasswd -B). It is read again when it changes. Without it and without Auth, whoever reaches the address is an
	// admin.
	UsersFile string `yaml:"users_file"`
	// Auth says how a trusted proxy or the tokens of a sign-in name the user, in place of UsersFile.
	Auth signin.Config `yaml:"auth"`
	// TrustedProxies are the networks whose header of Auth and GroupsHeader are used.
	TrustedProxies []string `yaml:"trusted_proxies"`
	// GroupsHeader is the header in which a trusted proxy names the groups of the user, with commas between
	// them.
	GroupsHeader string `yaml:"groups_header"`
	// GroupsClaim is the claim of a token with the groups of the user.
	GroupsClaim string `yaml:"groups_claim"`
	// TokenHeader is the header with the token, without the word Bearer. Empty: Authorization, with it.
	TokenHeader string `yaml:"token_header"`
	// Roles has what users may do, by name: viewer, operator or admin. A user of UsersFile who is not in it is
	// a viewer. With Auth, a user without a role of their own or of a group is refused.
	Roles map[string]operate.Role `yaml:"roles"`
	// GroupRoles has the same by group of the user. The highest role counts.
	GroupRoles map[string]operate.Role `yaml:"group_roles"`
	// MaskedFields are names of fields whose values are hidden in payloads, headers and errors. A name counts
	// inside of a longer one, without case and without what stands between words: token is also in accessToken and
	// X-Auth-Token. With an empty list nothing is hidden.
	MaskedFields []string `yaml:"masked_fields"`
	// RevealRole is the least role of a person who may see what is masked, with a reason that is recorded.
	RevealRole operate.Role `yaml:"reveal_role"`
	// TraceURL is the address of a page that shows a trace, with {trace} for its id, such as
	// https://tempo.example.com/trace/{trace}. Empty: ids of traces are no links.
	TraceURL string `yaml:"trace_url"`
	// ReadOnly removes all actions, so that the console can't change anything, and reveals nothing.
	ReadOnly bool `yaml:"read_only"`
	// TLS is the certificate of the server. Without it the server speaks HTTP without encryption.
	TLS setting.ServerTLS `yaml:"tls"`
	// AllowPlaintextCredentials permits passwords and tokens without TLS beyond loopback, for a proxy on the same
	// trusted network that ends TLS.
	AllowPlaintextCredentials bool `yaml:"allow_plaintext_credentials"`
}

var prefixShape = regexp.MustCompile(`^(/[A-Za-z0-9_-][A-Za-z0-9._~-]*)+$`)

// DefaultConfig returns the settings of the README.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:9465", GroupsClaim: "groups", RevealRole: operate.Admin,
		MaskedFields: []string{
			"password", "passwd", "passphrase", "secret", "token", "authorization", "cookie", "credential", "api_key", "private_key",
			"card_number", "cvv", "iban", "email", "phone",
		},
	}
}

// signsIn reports whether a proxy or a token names the user.
func (c *Config) signsIn() bool { return c.Auth.Header != "" || c.Auth.HasKeys() }

// EnabledByDefault returns false: the profiles of developers switch the console on, and in production an
// operator does.
func (*Config) EnabledByDefault() bool { return false }

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	var p setting.Problems
	_, port, err := net.SplitHostPort(c.Listen)
	wellFormed := err == nil && port != ""
	p.Check(wellFormed, "listen", "must be host:port, got %q", c.Listen)
	p.Check(c.Prefix == "" || prefixShape.MatchString(c.Prefix), "prefix", "must be a path such as /millrace, without / at its end, got %q", c.Prefix)
	if c.UsersFile != "" {
		_, err := followUsers(c.UsersFile, nil)
		p.Check(err == nil, "users_file", "%s", err)
	}
	for i, name := range c.MaskedFields {
		p.Check(simple(name) != "", "masked_fields["+strconv.Itoa(i)+"]", "must have a letter or a digit, because it would hide every field, got %q", name)
	}
	p.Check(isRole(c.RevealRole), "reveal_role", "must be viewer, operator or admin, got %q", c.RevealRole)
	p.Check(c.TraceURL == "" || isTraceURL(c.TraceURL), "trace_url", "must be the address of a page with %s once, such as https://tempo.example.com/trace/%[1]s, got %q", tracePlace, c.TraceURL)
	checkRoles := func(field string, roles map[string]operate.Role) {
		for _, name := range slices.Sorted(maps.Keys(roles)) {
			p.Check(isRole(roles[name]), field+"."+name,
				"must be viewer, operator or admin, got %q", roles[name])
		}
	}
	checkRoles("roles", c.Roles)
	checkRoles("group_roles", c.GroupRoles)
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		p.Check(c.UsersFile != "" || c.signsIn(), "roles."+name, "has no effect without plugins.console.users_file or plugins.console.auth, because nobody signs in")
	}
	p = append(p, c.validateAuth())
	p.Under("tls", c.TLS.Validate())
	if wellFormed && !setting.Loopback(c.Listen) {
		p.Check(c.UsersFile != "" || c.signsIn(), "listen",
			"must be on this machine, such as 127.0.0.1:9465, because anybody who reaches another address would see the pages, got %q: "+
				"set plugins.console.users_file to a file of htpasswd -B, so that the console asks for a password, or plugins.console.auth to what your proxy or sign-in sends", c.Listen)
		p.Check(c.UsersFile == "" && !c.Auth.HasKeys() || c.TLS.CertFile != "" || c.AllowPlaintextCredentials, "tls.cert_file",
			"must be set, because passwords and tokens must not cross a network without TLS: set it with tls.key_file, "+
				"or allow_plaintext_credentials: true behind a proxy that ends TLS")
	}
	return p.Err()
}

func isRole(r operate.Role) bool {
	return slices.Contains([]operate.Role{operate.Viewer, operate.Operator, operate.Admin}, r)
}

// validateAuth reports what is wrong with the settings of a proxy or of tokens.
func (c *Config) validateAuth() error {
	var p setting.Problems
	p = append(p, signin.ValidateProxies(c.TrustedProxies, c.Auth.Header))
	p.Under("auth", c.Auth.Validate(len(c.TrustedProxies) > 0))
	p.Check(c.UsersFile == "" || !c.signsIn(), "users_file", "must be empty with plugins.console.auth, which names the users")
	p.Check(!c.signsIn() || len(c.Roles)+len(c.GroupRoles) > 0, "roles", "must have a user, or group_roles a group, because with plugins.console.auth nobody else may see the console")
	p.Check(len(c.GroupRoles) == 0 || c.Auth.HasKeys() && c.GroupsClaim != "" || c.GroupsHeader != "", "group_roles",
		"has no effect, because nothing names the groups of a user: set groups_header, or auth.jwks_url or auth.jwks_file")
	p.Check(c.GroupsHeader == "" || c.Auth.Header != "", "groups_header", "has no effect without plugins.console.auth.header")
	p.Check(c.TokenHeader == "" || c.Auth.HasKeys(), "token_header", "has no effect without the keys of plugins.console.auth.jwks_url or jwks_file")
	for field, header := range map[string]string{"groups_header": c.GroupsHeader, "token_header": c.TokenHeader} {
		p.Check(header == "" || signin.CanName(header), field, "must be a header of the proxy, such as X-Groups: %q has another meaning or is no name of a header", header)
	}
	return p.Err()
}
