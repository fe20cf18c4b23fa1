package sqldbtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Pooler starts a PgBouncer with a pool_mode in front of the database of a DSN, and returns the DSN of that. It has no
// parameter of the startup message that PgBouncer would refuse, such as the search_path of Schema: each session has that
// path from the pooler. PgBouncer ends with the test, which is skipped where it is not installed.
func Pooler(t testing.TB, dsn, mode string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("needs pgbouncer")
	}
	tier.Met(t, "postgres")
	server, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	as := account(t)
	dir := (&Pair{t: t, account: as}).folder()
	password := ""
	if server.Password != "" {
		password = " password='" + strings.ReplaceAll(server.Password, "'", "''") + "'"
	}
	// The file says who signs in, so the pooler needs no list of users.
	config := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `[databases]
pooled = host=%s port=%d dbname=%s user=%s%s connect_query='SET search_path TO %s'
[pgbouncer]
listen_addr =
unix_socket_dir = %s
auth_type = any
pool_mode = %s
server_reset_query =
`, server.Host, server.Port, server.Database, server.User, password, server.RuntimeParams["search_path"], dir, mode), 0o644))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.CommandContext(context.Background(), program, config)
	cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = "/", as, log, log
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { // ends with the process, which the cleanup ends
		defer close(ended)
		_ = cmd.Wait()
		_ = log.Close()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		<-ended
	})
	pooled := (&url.URL{Scheme: "postgres", Path: "/pooled", RawQuery: url.Values{"host": {dir}, "port": {"6432"}, "user": {server.User}}.Encode()}).String()
	answers := false
	waitFor(func() bool {
		select {
		case <-ended:
			return true
		default:
		}
		conn, err := pgx.Connect(t.Context(), pooled)
		answers = err == nil && conn.Close(t.Context()) == nil
		return answers
	})
	if !answers {
		text, _ := os.ReadFile(log.Name())
		require.Fail(t, "the pooler does not answer", "%s", text)
	}
	return pooled
}
