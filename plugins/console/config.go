package console

import (
	"maps"
	"net"
	"slices"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.console.
type Config struct {
	// Listen is the address of the server, host:port; port 0 takes a free one. Beyond loopback it needs
	// UsersFile.
	Listen string `yaml:"listen"`
	// UsersFile has the users who may sign in with a password, in the format of htpasswd with bcrypt
	// (htpasswd -B). It is read at the start. Empty: whoever reaches the address sees the pages, and may use
	// all actions.
	UsersFile string `yaml:"users_file"`
	// Roles has what the users of UsersFile may do, by name: viewer, operator or admin. A user who is not
	// in it is a viewer. Without UsersFile, whoever reaches the address is an admin.
	Roles map[string]operate.Role `yaml:"roles"`
	// ReadOnly removes all actions, so that the console can't change anything.
	ReadOnly bool `yaml:"read_only"`
	// TLS is the certificate of the server. Without it the server speaks HTTP without encryption.
	TLS setting.ServerTLS `yaml:"tls"`
	// AllowPlaintextCredentials permits passwords without TLS beyond loopback, for a proxy on the same
	// trusted network that ends TLS.
	AllowPlaintextCredentials bool `yaml:"allow_plaintext_credentials"`
}

// DefaultConfig returns the settings of the README.
func DefaultConfig() Config { return Config{Listen: "127.0.0.1:9465"} }

// EnabledByDefault returns false: the profiles of developers switch the console on, and in production an
// operator does.
func (*Config) EnabledByDefault() bool { return false }

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	var p setting.Problems
	_, port, err := net.SplitHostPort(c.Listen)
	wellFormed := err == nil && port != ""
	p.Check(wellFormed, "listen", "must be host:port, got %q", c.Listen)
	var users map[string][]byte
	if c.UsersFile != "" {
		users, err = readUsers(c.UsersFile)
		p.Check(err == nil, "users_file", "%s", err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Roles)) {
		role := c.Roles[name]
		p.Check(slices.Contains([]operate.Role{operate.Viewer, operate.Operator, operate.Admin}, role), "roles."+name,
			"must be viewer, operator or admin, got %q", role)
		p.Check(c.UsersFile != "", "roles."+name, "has no effect without plugins.console.users_file, because nobody signs in")
		p.Check(users == nil || users[name] != nil, "roles."+name, "no user of %s has this name", c.UsersFile)
	}
	p.Under("tls", c.TLS.Validate())
	if wellFormed && !setting.Loopback(c.Listen) {
		p.Check(c.UsersFile != "", "listen",
			"must be on this machine, such as 127.0.0.1:9465, because anybody who reaches another address would see the pages, got %q: "+
				"set plugins.console.users_file to a file of htpasswd -B, so that the console asks for a password", c.Listen)
		p.Check(c.UsersFile == "" || c.TLS.CertFile != "" || c.AllowPlaintextCredentials, "tls.cert_file",
			"must be set, because passwords must not cross a network without TLS: set it with tls.key_file, "+
				"or allow_plaintext_credentials: true behind a proxy that ends TLS")
	}
	return p.Err()
}
