package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// connectTimeout bounds one attempt to connect to PostgreSQL, unless the DSN says otherwise.
	connectTimeout = 5 * time.Second

	// ConnLifetime is the longest life of a PostgreSQL connection in a pool. After it the next connection resolves the
	// host name again, and so reaches the server that is the primary then.
	ConnLifetime = 5 * time.Minute

	// idleInTransaction is how long PostgreSQL waits for a client inside a transaction. A frozen process keeps its
	// TCP connection, and its locks, until then.
	idleInTransaction = "10s"
)

// TunePostgres sets what every session has: times in UTC, a name, a bound on connecting, a server that takes writes, and
// the timeouts below. The DSN's own settings of the same name win.
//
// The timeouts are set by a statement, because poolers (PgBouncer) refuse them in the startup message. A server ends
// the session of a client that is silent inside a transaction for 10 s, or unreachable for 15 s to 25 s: its locks are
// free then, and the client's next statement fails with an error that Unreachable reports.
//
// A session whose server can't write any more, or is going down, is closed by the error that says so. A pool never gives
// it out again.
func TunePostgres(c *pgx.ConnConfig) {
	c.RuntimeParams["timezone"] = "UTC"
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "millrace"
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	// The client's side of the same bound: a server that vanished without a word.
	c.DialFunc = (&net.Dialer{Timeout: c.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}).DialContext
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	Set(c, "idle_in_transaction_session_timeout = '"+idleInTransaction+"'",
		"tcp_keepalives_idle = '10s'", "tcp_keepalives_interval = '5s'", "tcp_keepalives_count = 3", "tcp_user_timeout = '15s'")
	onError := c.OnPgError
	c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return !useless(err.Code) && (onError == nil || onError(conn, err))
	}
}

// OpenPostgres returns a database whose sessions TunePostgres has tuned and that have the settings (see Set), and the name of its
// server. It opens no connection yet: its error is one of the DSN. The caller closes the database.
func OpenPostgres(dsn string, settings ...string) (db *sql.DB, where string, err error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, "", fmt.Errorf("dsn: %w", err) // pgx leaves the password out
	}
	TunePostgres(c)
	if len(settings) > 0 {
		Set(c, settings...)
	}
	db = stdlib.OpenDB(*c)
	db.SetConnMaxLifetime(ConnLifetime)
	return db, "postgres at " + net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), nil
}

// Set gives every session of c settings of PostgreSQL, by a statement after it has connected. Each is a constant "name =
// value"; a name that the DSN has a value for is left out.
func Set(c *pgx.ConnConfig, settings ...string) {
	sql := ""
	for _, setting := range settings {
		name, _, _ := strings.Cut(setting, " = ")
		if _, given := c.RuntimeParams[name]; !given {
			sql += "SET " + setting + ";"
		}
	}
	before := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if before != nil {
			if err := before(ctx, conn); err != nil {
				return err
			}
		}
		return conn.Exec(ctx, sql).Close()
	}
}

// useless reports whether a session that got this SQLSTATE serves nothing any more: its server is a standby, is going
// down, or has ended it.
func useless(code string) bool {
	return code == "25006" || code == "25P03" || code == "25P04" || strings.HasPrefix(code, "57P")
}
