package sqldbtest

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Guarded is a PostgreSQL that checks passwords, with one role besides the superuser. Both belong to one
// test, which may change the password of the role.
type Guarded struct {
	t     testing.TB
	admin *pgx.Conn
	port  string
}

// guardedRole is the role of a Guarded. It owns its database.
const guardedRole = "millrace"

// NewGuarded starts the server on a free loopback port. It ends with the test, which chooses its part of
// the suite itself. The test is skipped when PostgreSQL is not installed.
func NewGuarded(t testing.TB, password string) *Guarded {
	t.Helper()
	p := &Pair{t: t, bin: programs()}
	if p.bin == "" {
		t.Skip("no PostgreSQL to start")
	}
	tier.Met(t, "postgres")
	p.account = account(t)
	data := filepath.Join(p.folder(), "guarded")
	p.run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
	rules := "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
	require.NoError(t, os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(rules), 0o600)) // the account can read its own file
	server := p.start(data, freePort(t))
	admin, err := pgx.Connect(t.Context(), p.dsn(server))
	require.NoError(t, err)
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	g := &Guarded{t: t, admin: admin, port: server.port}
	g.exec("CREATE ROLE " + guardedRole + " LOGIN PASSWORD '" + password + "'")
	g.exec("CREATE DATABASE " + guardedRole + " OWNER " + guardedRole)
	return g
}

// DSN returns the DSN of the role with a password.
func (g *Guarded) DSN(password string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(guardedRole, password), Host: "127.0.0.1:" + g.port, Path: guardedRole, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SetPassword changes the password of the role, and ends all its connections.
func (g *Guarded) SetPassword(password string) {
	g.t.Helper()
	g.exec("ALTER ROLE " + guardedRole + " PASSWORD '" + password + "'")
	g.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + guardedRole + "'")
}

func (g *Guarded) exec(sql string) {
	g.t.Helper()
	_, err := g.admin.Exec(g.t.Context(), sql)
	require.NoError(g.t, err, sql)
}
