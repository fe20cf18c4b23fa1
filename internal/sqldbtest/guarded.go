package sqldbtest

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Guarded is a PostgreSQL that checks passwords, with one role besides the superuser. Both belong to one
// test, which may change the password of the role.
type Guarded struct {
	t     testing.TB
	admin *pgx.Conn
	port  string
	pair  *Pair
	data  string

	client, passfile string // folder of the client's certificates, and its file of passwords; empty without TLS
}

// guardedRole is the role of a Guarded. It owns its database.
const guardedRole = "millrace"

// NewGuarded starts the server on a free loopback port. It ends with the test, which chooses its part of
// the suite itself. The test is skipped when PostgreSQL is not installed.
func NewGuarded(t testing.TB, password string) *Guarded {
	t.Helper()
	g := initGuarded(t, "host all all 127.0.0.1/32 scram-sha-256")
	g.begin(password)
	return g
}

// NewEncrypted is NewGuarded with TLS. The server has a certificate of an authority, takes no connection of
// the role without one of the same authority, and asks for the password as well. DSNOfFiles has the files.
func NewEncrypted(t testing.TB, password string) *Guarded {
	t.Helper()
	g := initGuarded(t, "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full") // the name in it is that of the role
	g.client = t.TempDir()
	g.passfile = filepath.Join(g.client, "passwords")
	a := pipelinetest.NewAuthority(t)
	g.writeServer(a)
	g.RotateClient(a)
	g.begin(password, "-c", "ssl=on", "-c", "ssl_cert_file=server.crt", "-c", "ssl_key_file=server.key", "-c", "ssl_ca_file=clients.crt")
	g.WritePassword(password)
	return g
}

// initGuarded makes the files of the server. The rule of pg_hba.conf is for all but the administrator.
func initGuarded(t testing.TB, rule string) *Guarded {
	t.Helper()
	p := &Pair{t: t, bin: programs()}
	if p.bin == "" {
		t.Skip("no PostgreSQL to start")
	}
	tier.Met(t, "postgres")
	p.account = account(t)
	g := &Guarded{t: t, pair: p, data: filepath.Join(p.folder(), "guarded")}
	p.run("initdb", "-D", g.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
	rules := "host all postgres 127.0.0.1/32 trust\n" + rule + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(g.data, "pg_hba.conf"), []byte(rules), 0o600)) // the account can read its own file
	return g
}

// begin starts the server and creates the role.
func (g *Guarded) begin(password string, options ...string) {
	g.t.Helper()
	server := g.pair.start(g.data, freePort(g.t), options...)
	admin, err := pgx.Connect(g.t.Context(), g.pair.dsn(server))
	require.NoError(g.t, err)
	g.t.Cleanup(func() { _ = admin.Close(context.Background()) })
	g.admin, g.port = admin, server.port
	g.exec("CREATE ROLE " + guardedRole + " LOGIN PASSWORD '" + password + "'")
	g.exec("CREATE DATABASE " + guardedRole + " OWNER " + guardedRole)
}

// DSN returns the DSN of the role with a password.
func (g *Guarded) DSN(password string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(guardedRole, password), Host: net.JoinHostPort("127.0.0.1", g.port), Path: guardedRole, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// DSNOfFiles returns the DSN of the role, which names the files of the certificates and of the password.
func (g *Guarded) DSNOfFiles() string {
	file := func(name string) string { return filepath.Join(g.client, name) }
	query := url.Values{
		"sslmode": {"verify-full"}, "sslrootcert": {file("ca.crt")}, "sslcert": {file("client.crt")}, "sslkey": {file("client.key")}, "passfile": {g.passfile},
	}
	u := url.URL{Scheme: "postgres", User: url.User(guardedRole), Host: net.JoinHostPort("127.0.0.1", g.port), Path: guardedRole, RawQuery: query.Encode()}
	return u.String()
}

// SetPassword changes the password of the role, and ends all its connections.
func (g *Guarded) SetPassword(password string) {
	g.t.Helper()
	g.exec("ALTER ROLE " + guardedRole + " PASSWORD '" + password + "'")
	g.endConnections()
}

// WritePassword replaces the file of passwords. For a while it is empty, as a writer leaves it that does not
// rename.
func (g *Guarded) WritePassword(password string) {
	g.t.Helper()
	require.NoError(g.t, os.WriteFile(g.passfile, nil, 0o600))
	pipelinetest.Replace(g.t, g.passfile, []byte("*:*:*:"+guardedRole+":"+password+"\n"))
}

// RotateServer gives the server a certificate of the authority, which then signs those of clients too, and
// ends all connections of the role.
func (g *Guarded) RotateServer(a *pipelinetest.Authority) {
	g.t.Helper()
	g.writeServer(a)
	g.exec("SELECT pg_reload_conf()")
	g.endConnections()
}

func (g *Guarded) writeServer(a *pipelinetest.Authority) {
	g.t.Helper()
	key, cert := a.Issue("server", time.Now().Add(time.Hour))
	for name, text := range map[string][]byte{"server.key": key, "server.crt": cert, "clients.crt": a.PEM} {
		file := filepath.Join(g.data, name)
		require.NoError(g.t, os.WriteFile(file, text, 0o600))
		if as := g.pair.account; as != nil { // PostgreSQL refuses the key of another account
			require.NoError(g.t, os.Chown(file, int(as.Credential.Uid), int(as.Credential.Gid)))
		}
	}
}

// RotateClient gives the client a certificate of the authority. It leaves the files half written for a while.
func (g *Guarded) RotateClient(a *pipelinetest.Authority) {
	g.t.Helper()
	key, cert := a.Issue(guardedRole, time.Now().Add(time.Hour))
	replace := func(name string, text []byte) { pipelinetest.Replace(g.t, filepath.Join(g.client, name), text) }
	replace("ca.crt", a.PEM[:len(a.PEM)/2])
	replace("client.crt", cert)
	replace("client.key", key)
	replace("ca.crt", a.PEM)
}

// Encrypted returns how many connections the role has with and without TLS.
func (g *Guarded) Encrypted() (with, without int) {
	g.t.Helper()
	require.NoError(g.t, g.admin.QueryRow(g.t.Context(), `SELECT count(*) FILTER (WHERE s.ssl AND s.client_dn IS NOT NULL), count(*) FILTER (WHERE NOT s.ssl)
		FROM pg_stat_ssl AS s JOIN pg_stat_activity USING (pid) WHERE usename = $1`, guardedRole).Scan(&with, &without))
	return with, without
}

func (g *Guarded) endConnections() {
	g.t.Helper()
	g.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '" + guardedRole + "'")
}

func (g *Guarded) exec(sql string) {
	g.t.Helper()
	_, err := g.admin.Exec(g.t.Context(), sql)
	require.NoError(g.t, err, sql)
}
