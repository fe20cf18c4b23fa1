package sqldb

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// CheckDSN checks the DSN of the setting at path: its scheme, and that a PostgreSQL on another
// machine has an sslmode. An empty one is accepted.
func CheckDSN(p *setting.Problems, path string, dsn setting.Secret) {
	known := dsn.IsZero() || portable.DialectOf(dsn.Reveal()) != ""
	p.Check(known, path, "must begin with postgres://, postgresql:// or sqlite:")
	if err := checkEncryption(dsn.Reveal()); known && err != nil {
		p.Check(false, path, "%s", err)
	}
}

// checkEncryption refuses a PostgreSQL DSN of another machine without an sslmode. The driver's
// default, sslmode=prefer, silently falls back to plain text and verifies no certificate. The check
// uses the connections that the driver makes: the URL, the PG… environment variables and a service
// file all count.
//
// Each explicit sslmode is accepted, also sslmode=disable. The exception is sslmode=prefer in a
// service file, which looks like the default. It also accepts sqlite:, an address of this machine,
// and a DSN that names an unreadable file, which fails when the database is opened. The error does
// not contain the DSN.
func checkEncryption(dsn string) error {
	if portable.DialectOf(dsn) != portable.Postgres {
		return nil
	}
	attempts, err := attemptsOf(dsn)
	var file *fs.PathError
	switch {
	case errors.As(err, &file): // a certificate or key, which another machine may have
		return nil
	case err != nil:
		return errors.New("must be valid: the driver can't read it, or the service that it names")
	case !local(attempts) && preferred(attempts) && !explicitPrefer(dsn):
		return errors.New("must have an sslmode, because the server is on another machine: add sslmode=verify-full (sslmode=disable sends passwords and data in plain text)")
	}
	return nil
}

// OnThisMachine reports whether the database is a file, or the driver connects only to sockets and
// loopback addresses. The environment and a service file count, too. It is false
// for a DSN that the driver can't read.
func OnThisMachine(dsn string) bool {
	if portable.DialectOf(dsn) != portable.Postgres {
		return true
	}
	attempts, err := attemptsOf(dsn)
	return err == nil && local(attempts)
}

// attemptsOf returns the connections that the driver tries, in their order.
func attemptsOf(dsn string) ([]*pgconn.FallbackConfig, error) {
	c, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	first := &pgconn.FallbackConfig{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}
	return append([]*pgconn.FallbackConfig{first}, c.Fallbacks...), nil
}

func isSocket(a *pgconn.FallbackConfig) bool {
	network, _ := pgconn.NetworkAddress(a.Host, a.Port)
	return network == "unix"
}

// local reports whether all attempts stay on this machine.
func local(attempts []*pgconn.FallbackConfig) bool {
	for _, a := range attempts {
		if !isSocket(a) && !setting.Loopback(a.Host) {
			return false
		}
	}
	return true
}

// preferred reports whether the attempts are those of sslmode=prefer: encrypted first, then in
// plain text. Other modes have no attempt in plain text, or start with one. Sockets are never
// encrypted and do not count.
func preferred(attempts []*pgconn.FallbackConfig) bool {
	encrypted := false
	for _, a := range attempts {
		switch {
		case isSocket(a):
		case a.TLSConfig != nil:
			encrypted = true
		default:
			return encrypted
		}
	}
	return false
}

// explicitPrefer reports whether sslmode=prefer is set by the URL or the environment. The URL's
// sslmode comes first, even an empty one.
func explicitPrefer(dsn string) bool {
	_, query, _ := strings.Cut(dsn, "?")
	params, _ := url.ParseQuery(query) // the driver has read it
	if modes := params["sslmode"]; len(modes) > 0 {
		return modes[len(modes)-1] == "prefer"
	}
	return os.Getenv("PGSSLMODE") == "prefer"
}
