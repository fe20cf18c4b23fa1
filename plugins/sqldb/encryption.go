package sqldb

import (
	"errors"
	"net/url"
	"os"
	"strings"

	"github.com/millrace-io/millrace/pipeline"
)

// CheckEncryption refuses a PostgreSQL DSN of another machine that does not say whether the connection is encrypted: the
// driver's default, sslmode=prefer, falls back to plain text without a word and verifies no certificate. A DSN that
// says sslmode, whatever its value, is accepted, and so are sqlite: and an address of this machine. The error does not
// show the DSN.
func CheckEncryption(dsn string) error {
	if os.Getenv("PGSSLMODE") != "" || OnThisMachine(dsn) {
		return nil
	}
	if u, err := url.Parse(dsn); err == nil && u.Query().Get("sslmode") != "" {
		return nil
	}
	return errors.New("must say sslmode, because the server is on another machine: add sslmode=verify-full (sslmode=disable sends passwords and data in plain text)")
}

// OnThisMachine reports whether the database of a DSN is a file, or a server at a socket or a loopback address. A DSN
// without a host is that of a server here; so is one that can't be read.
func OnThisMachine(dsn string) bool {
	u, err := url.Parse(dsn)
	if err != nil || DialectOf(dsn) != Postgres {
		return true
	}
	hosts := u.Host
	if h := u.Query().Get("host"); h != "" {
		hosts = h
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host != "" && !strings.HasPrefix(host, "/") && !pipeline.Loopback(host) { // a path is that of a socket
			return false
		}
	}
	return true
}
