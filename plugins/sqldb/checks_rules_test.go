package sqldb

import (
	"context"
	"database/sql"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// A server that goes away during a check is away.
func TestACheckOfAServerThatWentAway(t *testing.T) {
	t.Parallel()
	read := func(err error) error {
		_, err = one(nil, "version", func(context.Context, *sql.DB) (operate.Check, error) { return operate.Check{}, err }).Read(t.Context())
		return err
	}
	require.ErrorIs(t, read(&pgconn.PgError{Code: "57P01", Message: "terminating connection"}), pipeline.ErrUnavailable)
	require.ErrorIs(t, read(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), pipeline.ErrUnavailable)
	require.NotErrorIs(t, read(&pgconn.PgError{Code: "42501", Message: "permission denied"}), pipeline.ErrUnavailable)
}

// States into which a test can't bring a server that others share.
func TestChecksOfReadings(t *testing.T) {
	t.Parallel()
	const names = "FIRST 1 (b)"
	pooler := func(idle, busy uint32, rounds ...poolerRound) operate.Check {
		return poolerReading{promised: [2]uint32{idle, busy}, rounds: rounds}.check()
	}
	of := func(used, limit int) connectionLimit { return connectionLimit{used, limit, "of x", "raise it"} }
	for name, tc := range map[string]struct {
		check operate.Check
		level operate.Level
		text  string
	}{
		"an old server":           {versionCheck(120005, "12.5"), operate.Fail, "PostgreSQL 12.5"},
		"the oldest":              {versionCheck(130000, "13.0"), operate.OK, "PostgreSQL 13.0"},
		"no pooler":               {pooler(7, 8, poolerRound{7, 8, 7}), operate.OK, "no pooler"},
		"a pooler of sessions":    {pooler(1, 2, poolerRound{7, 8, 7}, poolerRound{7, 8, 7}), operate.OK, "as with pool_mode session"},
		"a pooler in part":        {pooler(7, 2, poolerRound{7, 8, 7}), operate.OK, "as with pool_mode session"},
		"a session given away":    {pooler(1, 2, poolerRound{7, 8, 7}, poolerRound{7, 7, 9}), operate.Fail, "as with pool_mode transaction"},
		"a session that returned": {pooler(1, 2, poolerRound{7, 7, 7}), operate.Fail, "as with pool_mode transaction"},
		"another session":         {pooler(1, 2, poolerRound{7, 8, 9}), operate.Fail, "as with pool_mode transaction"},
		"no fsync":                {durability{"off", "on", names, 1}.check(), operate.Fail, "fsync is off"},
		"no wait for the disk":    {durability{"on", "off", names, 1}.check(), operate.Fail, "synchronous_commit is off"},
		"no standby":              {durability{"on", "on", "", 1}.check(), operate.Warn, "none is synchronous"},
		"no wait for the standby": {durability{"on", "local", names, 1}.check(), operate.Warn, "does not wait"},
		"the standby is away":     {durability{"on", "on", names, 0}.check(), operate.Fail, "commits wait for FIRST 1 (b)"},
		"a standby":               {durability{"on", "on", names, 1}.check(), operate.OK, "commits wait for FIRST 1 (b)"},
		"few connections":         {connectionsCheck(of(10, 97)), operate.OK, "10 of 97"},
		"many connections":        {connectionsCheck(of(80, 97)), operate.Warn, "80 of 97"},
		"nearly all connections":  {connectionsCheck(of(95, 97)), operate.Fail, "95 of 97"},
		"one limit of many":       {connectionsCheck(of(10, 97), of(10, -1), of(9, 10)), operate.Warn, "10 of 97 are open, of x; 9 of 10 are open, of x"},
		"the nearest limit":       {connectionsCheck(of(96, 97), of(85, 100)), operate.Fail, "96 of 97"},
		"a short transaction":     {transactionsCheck(time.Minute, true), operate.OK, "open for 1m0s (of all users)"},
		"an old transaction":      {transactionsCheck(time.Hour, false), operate.Warn, "pg_read_all_stats"},
		"no tables":               {tablesCheck(nil), operate.OK, "0 tables"},
		"dead rows":               {tablesCheck([]tableSize{{"a", 5 << 20, 9, 9}, {"b", 1 << 20, 100, 2_000_000}}), operate.Warn, "; the largest are a 5 MiB (9 live and 9 dead rows), b 1 MiB (100 live and 2000000 dead rows); b has 2000000 dead rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.level, tc.check.Level, tc.check)
			require.Contains(t, tc.check.Text, tc.text)
			require.Equal(t, tc.level == operate.OK, tc.check.Remedy == "")
		})
	}
}

// PgBouncer has one SQLSTATE for all of its own errors, and only one of them is about transactions.
func TestAFullPoolerDoesNotRefuseTransactions(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"transaction blocks not allowed in statement pooling mode": true,
		"query_wait_timeout": false,
	} {
		require.Equal(t, want, refusesTransactions(&pgconn.PgError{Code: protocolViolation, Message: message}), message)
	}
	require.False(t, refusesTransactions(nil))
}
