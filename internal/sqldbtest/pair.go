package sqldbtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Pair is a PostgreSQL primary with one synchronous standby. Both belong to one test, which may cut
// the standby off, kill the primary and promote the standby.
type Pair struct {
	t                testing.TB
	bin              string
	account          *syscall.SysProcAttr
	primary, standby *process
	link             *link
}

// process is a running server.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	port  string
}

// NewPair starts the two servers on free loopback ports. They end with the test, which chooses its
// part of the suite itself. The test is skipped when PostgreSQL is not installed.
func NewPair(t testing.TB) *Pair {
	t.Helper()
	p := &Pair{t: t, bin: programs()}
	if p.bin == "" {
		t.Skip("no PostgreSQL to start")
	}
	tier.Met(t, "postgres")
	p.account = account(t)
	data := p.folder()
	p.run("initdb", "-D", filepath.Join(data, "primary"), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync")
	p.primary = p.start(filepath.Join(data, "primary"), freePort(t))
	p.link = newLink(t, net.JoinHostPort("127.0.0.1", p.primary.port))
	through := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=standby", p.link.port())
	p.run("pg_basebackup", "-d", through, "-D", filepath.Join(data, "standby"), "-R", "-c", "fast", "--no-sync")
	p.standby = p.start(filepath.Join(data, "standby"), freePort(t), "-c", "primary_conninfo="+through)
	p.on(p.Primary(), "ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		var state string
		return p.one(p.Primary(), &state, "SELECT sync_state FROM pg_stat_replication") == nil && state == "sync"
	}, time.Minute, 20*time.Millisecond, "the standby is synchronous")
	return p
}

// Primary returns the DSN of the first primary.
func (p *Pair) Primary() string { return p.dsn(p.primary) }

// Standby returns the DSN of the standby.
func (p *Pair) Standby() string { return p.dsn(p.standby) }

// DSN returns the DSN of whichever of the two is the primary.
func (p *Pair) DSN() string {
	return "postgres://postgres@127.0.0.1:" + p.primary.port + ",127.0.0.1:" + p.standby.port + "/postgres?sslmode=disable"
}

// CancelWaits cancels the waits of commits for the standby, as an operator may, and returns their
// number. The primary then shows what the standby does not have.
func (p *Pair) CancelWaits() (n int) {
	p.t.Helper()
	require.NoError(p.t, p.one(p.Primary(), &n,
		"SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep') AS waits"))
	return n
}

func (p *Pair) dsn(s *process) string {
	return "postgres://postgres@127.0.0.1:" + s.port + "/postgres?sslmode=disable"
}

// Freeze cuts the standby off: nothing that the primary writes from now on arrives there, and both
// keep their connections. Each COMMIT with a write then waits.
func (p *Pair) Freeze() { p.link.freeze() }

// Promote kills the primary, makes the standby the new primary, and waits until it takes writes.
func (p *Pair) Promote() {
	p.t.Helper()
	p.primary.kill()
	p.link.close()
	p.on(p.Standby(), "SELECT pg_promote(true, 60)")
	require.Eventually(p.t, func() bool {
		var standby bool
		return p.one(p.Standby(), &standby, "SELECT pg_is_in_recovery()") == nil && !standby
	}, time.Minute, 20*time.Millisecond, "the standby was promoted")
	p.on(p.Standby(), "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

// on runs statements on one of the servers.
func (p *Pair) on(dsn string, statements ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+adminTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(p.t, err)
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range statements {
		_, err := conn.Exec(ctx, sql)
		require.NoError(p.t, err, sql)
	}
}

func (p *Pair) one(dsn string, to any, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTime)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, sql).Scan(to)
}

// folder returns an empty folder that the account of the servers can reach. That of the test is not,
// because only its owner may enter it.
func (p *Pair) folder() string {
	p.t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "millrace-postgres-pair-")
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if p.account != nil {
		require.NoError(p.t, os.Chown(dir, int(p.account.Credential.Uid), int(p.account.Credential.Gid)))
	}
	return dir
}

func (p *Pair) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), filepath.Join(p.bin, program), args...)
	cmd.Dir = "/"
	if p.account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account.Credential}
	}
	return cmd
}

func (p *Pair) run(program string, args ...string) {
	p.t.Helper()
	out, err := p.command(program, args...).CombinedOutput()
	require.NoError(p.t, err, "%s: %s", program, out)
}

// start starts a server on a port, and waits until it answers.
func (p *Pair) start(data, port string, options ...string) *process {
	p.t.Helper()
	log, err := os.Create(data + ".log")
	require.NoError(p.t, err)
	cmd := p.command("postgres", append([]string{"-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "logging_collector=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60"}, options...)...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(p.t, cmd.Start())
	s := &process{cmd: cmd, port: port, ended: make(chan struct{})}
	go func() { // ends with the process, which the cleanup kills
		defer close(s.ended)
		_ = cmd.Wait()
		_ = log.Close()
	}()
	p.t.Cleanup(s.kill)
	var answer int
	ok := func() bool { return p.one(p.dsn(s), &answer, "SELECT 1") == nil }
	if !waitFor(ok) {
		text, _ := os.ReadFile(data + ".log")
		require.Fail(p.t, "the server does not answer", "%s", text)
	}
	return s
}

func waitFor(ok func() bool) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// kill ends the server at once, as a crash does. PostgreSQL removes its shared memory on SIGQUIT.
func (s *process) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-s.ended:
	case <-time.After(adminTime):
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}

// programs returns the folder of PostgreSQL's programs, the newest version first, or "".
func programs() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is well-formed
	slices.Sort(found)
	slices.Reverse(found)
	if len(found) == 0 {
		if file, err := exec.LookPath("postgres"); err == nil {
			if file, err = filepath.EvalSymlinks(file); err == nil {
				found = append(found, file)
			}
		}
	}
	for _, file := range found {
		if _, err := os.Stat(filepath.Join(filepath.Dir(file), "pg_basebackup")); err == nil {
			return filepath.Dir(file)
		}
	}
	return ""
}

// account returns how to run as an account that PostgreSQL accepts, because it refuses root. Nil: as
// this process.
func account(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		require.NoError(t, err)
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		require.NoError(t, err)
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	t.Skip("no account for PostgreSQL, which refuses root")
	return nil
}

// freePort returns a port that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	return port
}

// link forwards connections of the standby to the primary.
type link struct {
	ln     net.Listener
	target string
	frozen chan struct{} // closed: nothing is forwarded any more
	ended  chan struct{}
	once   struct{ freeze, close sync.Once }
	conns  sync.Map // net.Conn -> struct{}
	pumps  sync.WaitGroup
}

func newLink(t testing.TB, target string) *link {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &link{ln: ln, target: target, frozen: make(chan struct{}), ended: make(chan struct{})}
	l.pumps.Go(l.accept)
	t.Cleanup(l.close)
	return l
}

func (l *link) port() int { return l.ln.Addr().(*net.TCPAddr).Port }

func (l *link) freeze() { l.once.freeze.Do(func() { close(l.frozen) }) }

func (l *link) close() {
	l.once.close.Do(func() {
		close(l.ended)
		_ = l.ln.Close()
		l.conns.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		l.pumps.Wait()
	})
}

func (l *link) accept() {
	for {
		in, err := l.ln.Accept()
		if err != nil {
			return
		}
		out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, c := range []net.Conn{in, out} {
			l.conns.Store(c, struct{}{})
		}
		select {
		case <-l.ended:
			_, _ = in.Close(), out.Close()
			return
		default:
		}
		l.pumps.Go(func() { l.pump(in, out) })
		l.pumps.Go(func() { l.pump(out, in) })
	}
}

// pump copies until an end, or until the link is frozen. What was read when it froze is lost.
func (l *link) pump(to io.WriteCloser, from io.ReadCloser) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-l.frozen:
			<-l.ended
			return
		default:
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
