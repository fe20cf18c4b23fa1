package sqldb

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errNotReplicated means that a commit is stored on the server, and that the server has cancelled
// its wait for the synchronous standby. A failover may lose the transaction, so its outcome is
// unknown: Unreachable reports it.
var errNotReplicated = errors.New("the server stopped waiting for its synchronous standby, which may not have the transaction")

// Commits watches the connections of one PostgreSQL database for cancelled waits. The zero value is
// ready, and a nil one watches nothing (SQLite).
//
// The server answers COMMIT with success when somebody cancels the wait (pg_cancel_backend), and
// sends a warning first. The client reads the warning before the answer.
type Commits struct{ cancelled atomic.Int64 }

// reportWarnings has a session report warnings, unless it does already. A role, a database or a DSN
// may have turned them off, and a cancelled wait would then look like a success.
const reportWarnings = "SELECT set_config('client_min_messages', 'warning', false) WHERE current_setting('client_min_messages') = 'error'"

// Watch adds the handler of the warning to the connections that are made with config, and has their
// sessions report warnings.
func (c *Commits) Watch(config *pgx.ConnConfig) {
	before := config.OnNotice
	config.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		// The text depends on lc_messages, and the SQLSTATE is that of any warning.
		if n.Routine == "SyncRepWaitForLSN" {
			c.cancelled.Add(1)
		}
		if before != nil {
			before(conn, n)
		}
	}
	connected := config.AfterConnect
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		return conn.Exec(ctx, reportWarnings).Close()
	}
}

// Do runs commit, which ends a transaction on one of the connections. It returns an
// error that Unreachable reports if a wait was cancelled meanwhile. That may be the wait of another
// commit, as a repetition is harmless.
func (c *Commits) Do(commit func() error) error {
	if c == nil {
		return commit()
	}
	before := c.cancelled.Load()
	if err := commit(); err != nil {
		return err
	}
	if c.cancelled.Load() != before {
		return errNotReplicated
	}
	return nil
}
