package sqldb

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-io/millrace/pipeline"
)

// CheckEncryption refuses a PostgreSQL DSN of another machine for which no sslmode is set: the driver's default,
// sslmode=prefer, falls back to plain text without a word and verifies no certificate. The DSN is judged by the
// connections that the driver makes: the URL, the PG… environment variables and a service file all count. Each sslmode
// that one of them sets is accepted, sslmode=disable too. The exception is sslmode=prefer in a service file, because it
// can't be told from the default. Accepted as well are sqlite:, an address of this machine, and a DSN that names a file
// which can't be opened: opening the database refuses that one. The error does not show the DSN.
func CheckEncryption(dsn string) error {
	if DialectOf(dsn) != Postgres {
		return nil
	}
	attempts, err := attemptsOf(dsn)
	var file *fs.PathError
	switch {
	case errors.As(err, &file): // a certificate or key, which another machine may have
		return nil
	case err != nil:
		return errors.New("must be right: the driver can't read it, or the service that it names")
	case !local(attempts) && preferred(attempts) && !asksToPrefer(dsn):
		return errors.New("must say sslmode, because the server is on another machine: add sslmode=verify-full (sslmode=disable sends passwords and data in plain text)")
	}
	return nil
}

// OnThisMachine reports whether the database of a DSN is a file, or whether the driver connects only to sockets and
// loopback addresses. The PG… environment variables and a service file count as in CheckEncryption. It is false for a
// DSN that the driver can't read.
func OnThisMachine(dsn string) bool {
	if DialectOf(dsn) != Postgres {
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
		if !isSocket(a) && !pipeline.Loopback(a.Host) {
			return false
		}
	}
	return true
}

// preferred reports whether the attempts are those of sslmode=prefer: encrypted first, then in plain text. The other
// modes have no attempt in plain text, or begin with one. Sockets are never encrypted and don't count.
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

// asksToPrefer reports whether sslmode=prefer is set by the URL or by the environment, and is not the default. The
// URL's sslmode comes first, even an empty one.
func asksToPrefer(dsn string) bool {
	_, query, _ := strings.Cut(dsn, "?")
	params, _ := url.ParseQuery(query) // the driver has read it
	if modes := params["sslmode"]; len(modes) > 0 {
		return modes[len(modes)-1] == "prefer"
	}
	return os.Getenv("PGSSLMODE") == "prefer"
}
