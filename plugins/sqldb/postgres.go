package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	// connectTimeout bounds one attempt to connect to PostgreSQL, unless the DSN has a value.
	connectTimeout = 5 * time.Second

	// ConnLifetime is the maximum lifetime of a PostgreSQL connection in a pool. The next
	// connection resolves the host name again, and so reaches the current primary.
	ConnLifetime = 5 * time.Minute

	// idleInTransaction is how long PostgreSQL waits for a client inside a transaction. A frozen
	// process keeps its connection and its locks until then.
	idleInTransaction = "10s"
)

// TunePostgres sets the defaults of each session: times in UTC, a name, a limit on connecting, a
// server that takes writes, and the timeouts below. Settings of the DSN win.
//
// The timeouts are set by a statement, because poolers (PgBouncer) refuse them in the startup
// message. A server ends the session of a client that is silent inside a transaction for 10 s, or
// unreachable for 15 s to 25 s. Then its locks are free. The next statement of the client fails
// with an error that Unreachable reports.
//
// Each statement under a recorded span is a span, unless c has a tracer.
//
// A session whose server can't write any more, or is going down, is closed by that error. A pool
// never uses it again.
func TunePostgres(c *pgx.ConnConfig) {
	c.RuntimeParams["timezone"] = "UTC"
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "millrace"
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	// The same limit on the client's side, for a server that disappeared.
	c.DialFunc = (&net.Dialer{Timeout: c.ConnectTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}).DialContext
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	Set(c, "idle_in_transaction_session_timeout = '"+idleInTransaction+"'",
		"tcp_keepalives_idle = '10s'", "tcp_keepalives_interval = '5s'", "tcp_keepalives_count = 3", "tcp_user_timeout = '15s'")
	if c.Tracer == nil {
		c.Tracer = newTracer(c)
	}
	onError := c.OnPgError
	c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return !useless(err.Code) && (onError == nil || onError(conn, err))
	}
}

// OpenPostgres returns a database whose sessions are tuned by TunePostgres and have the settings
// (see Set), the watcher of its commits, and the name of its server. Each connection has the current
// credentials (see Renew). It opens no connection yet: its error is about the DSN. A nil log discards.
// The caller closes the database.
func OpenPostgres(dsn setting.Secret, log *slog.Logger, settings ...string) (db *sql.DB, commits *Commits, where string, err error) {
	c, err := pgx.ParseConfig(dsn.Reveal())
	if err != nil {
		return nil, nil, "", fmt.Errorf("dsn: %w", err) // pgx omits the password
	}
	TunePostgres(c)
	commits = new(Commits)
	commits.Watch(c)
	if len(settings) > 0 {
		Set(c, settings...)
	}
	db = stdlib.OpenDB(*c, stdlib.OptionBeforeConnect(Renew(dsn, log)))
	db.SetConnMaxLifetime(ConnLifetime)
	return db, commits, "postgres at " + net.JoinHostPort(c.Host, fmt.Sprint(c.Port)), nil
}

// Set adds settings of PostgreSQL to every session of c, by a statement after connecting. Each is a
// constant "name = value". A name with a value in the DSN is skipped.
func Set(c *pgx.ConnConfig, settings ...string) {
	sql := ""
	for _, one := range settings {
		name, _, _ := strings.Cut(one, " = ")
		if _, given := c.RuntimeParams[name]; !given {
			sql += "SET " + one + ";"
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

// useless reports whether a session with this SQLSTATE must be closed: its server is a standby, is
// going down, or has ended it.
func useless(code string) bool {
	return code == "25006" || code == "25P03" || code == "25P04" || strings.HasPrefix(code, "57P")
}
