package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Database returns the number of an empty database that no other test has until this one ends, also
// in another run on this machine. A test that has it may flush it.
func (s Server) Database(t testing.TB) (number int) {
	t.Helper()
	if s.Mini != nil {
		return 0
	}
	const databases = 16
	var lock *os.File
	free := func() bool {
		number = 1 + number%(databases-1)
		name := fmt.Sprintf("millrace-test-redis-%s-%d.lock", strings.ReplaceAll(s.Addr, ":", "-"), number)
		f, err := os.OpenFile(filepath.Join(os.TempDir(), name), os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { //nolint:gosec // it fits
			require.NoError(t, f.Close())
			return false
		}
		lock = f
		return true
	}
	for end := time.Now().Add(5 * time.Minute); !free(); <-time.After(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "no database is free")
	}
	t.Cleanup(func() { require.NoError(t, lock.Close()) })
	c := s.Client(t, func(o *goredis.Options) { o.DB = number })
	require.NoError(t, c.FlushDB(t.Context()).Err())
	t.Cleanup(func() { c.FlushDB(context.Background()) })
	return number
}

// Own is a server of one test.
type Own struct {
	Server
	t   testing.TB
	cmd *exec.Cmd
}

// EachOwn runs the test on a Redis and on a Valkey of its own, as t/redis-server and
// t/valkey-server.
func EachOwn(t *testing.T, test func(t *testing.T, s *Own), options ...string) {
	t.Helper()
	for _, program := range []string{"redis-server", "valkey-server"} {
		t.Run(program, func(t *testing.T) {
			if program == "redis-server" {
				tier.Default(t)
			} else {
				tier.Rest(t)
			}
			test(t, startOwn(t, program, options...))
		})
	}
}

// startOwn starts a server, which ends with the test. The test is skipped when the program is not
// installed.
func startOwn(t testing.TB, program string, options ...string) *Own {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("no %s to start", program)
	}
	addr, port := freePort(t)
	options = append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--save", "", "--appendonly", "no"}, options...)
	o := &Own{Server: Server{Name: program, Addr: addr}, t: t, cmd: exec.CommandContext(context.WithoutCancel(t.Context()), path, options...)}
	require.NoError(t, o.cmd.Start())
	t.Cleanup(func() {
		_ = o.cmd.Process.Kill()
		_ = o.cmd.Wait()
	})
	c := o.Client(t)
	// Another process may have taken the port.
	ours := fmt.Sprintf("process_id:%d\r\n", o.cmd.Process.Pid)
	Eventually(t, "it answers", func() bool { return strings.Contains(c.Info(t.Context(), "server").Val(), ours) })
	return o
}

// freePort returns an address that no program listens on.
func freePort(t testing.TB) (addr, port string) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	addr = ln.Addr().String()
	_, port, err = net.SplitHostPort(addr)
	require.NoError(t, err)
	return addr, port
}

// EachCluster runs the test on a Cluster of two Redis, and on one of two Valkey. The first one has all slots.
func EachCluster(t *testing.T, test func(t *testing.T, first, second *Own)) {
	t.Helper()
	bus := func(t testing.TB) []string {
		_, port := freePort(t)
		return []string{"--cluster-enabled", "yes", "--cluster-port", port}
	}
	options := bus(t)
	EachOwn(t, func(t *testing.T, first *Own) {
		other := bus(t)
		second := startOwn(t, first.Name, other...)
		one, two := first.Client(t), second.Client(t)
		require.NoError(t, one.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
		host, port, err := net.SplitHostPort(second.Addr)
		require.NoError(t, err)
		require.NoError(t, one.Do(t.Context(), "cluster", "meet", host, port, other[3]).Err())
		Eventually(t, "the Cluster is complete", func() bool {
			const both, ok = "cluster_known_nodes:2", "cluster_state:ok"
			a, b := one.ClusterInfo(t.Context()).Val(), two.ClusterInfo(t.Context()).Val()
			return strings.Contains(a, both) && strings.Contains(a, ok) && strings.Contains(b, both) && strings.Contains(b, ok)
		})
		test(t, first, second)
	}, options...)
}

// Replica starts a replica of the server, and waits until it has its data.
func (o *Own) Replica() *Own {
	o.t.Helper()
	_, port, err := net.SplitHostPort(o.Addr)
	require.NoError(o.t, err)
	c := o.Client(o.t)
	require.NoError(o.t, c.ConfigSet(o.t.Context(), "repl-diskless-sync-delay", "0").Err())
	replica := startOwn(o.t, o.Name, "--replicaof", "127.0.0.1 "+port)
	Eventually(o.t, "the replica has the data", func() bool { return c.Wait(o.t.Context(), 1, time.Second).Val() == 1 })
	return replica
}

// SetPaused stops the process of the server, or lets it go on.
func (o *Own) SetPaused(paused bool) {
	o.t.Helper()
	signal := syscall.SIGCONT
	if paused {
		signal = syscall.SIGSTOP
	}
	require.NoError(o.t, o.cmd.Process.Signal(signal))
}
