package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// The binaries under test are built once, on first use.
var plainBuild, armedBuild build

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "millrace-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // PostgreSQL runs as a user of its own
	}
	if err != nil {
		panic(err)
	}
	workDir = dir
	code := m.Run()
	wipeFleets()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var workDir string

// startBound starts a process that is killed when this one ends, however it ends. done is closed
// when the process has ended.
func startBound(cmd *exec.Cmd) (done chan struct{}, err error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	release, err := servers.SignalOnExit(cmd.Process.Pid, syscall.SIGKILL)
	if err != nil {
		_ = cmd.Process.Kill()
		release = func() {}
	}
	done = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		release()
		close(done)
	}()
	return done, err
}

// build is a binary of the service.
type build struct {
	once sync.Once
	path string
	err  error
}

// binary builds the service once.
func binary(t *testing.T) string {
	t.Helper()
	return plainBuild.get(t, "millrace")
}

// armedBinary builds the service with failpoints once.
func armedBinary(t *testing.T) string {
	t.Helper()
	return armedBuild.get(t, "millrace-faults", "-tags", "faults")
}

func (b *build) get(t *testing.T, name string, flags ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the binary")
	}
	b.once.Do(func() {
		b.path = filepath.Join(workDir, name)
		args := append(append([]string{"build", "-ldflags=-w"}, flags...), "-o", b.path, "../cmd/millrace")
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, b.err)
	return b.path
}

// The ports that freePort returns are below those of outgoing connections. Such a connection could
// take a port before its server listens, or while that is down.
const firstFree, lastFree = 10_240, 14_999

var nextFree atomic.Int64

// freePort returns an address of loopback without a listener, and each address only once.
func freePort() (string, error) {
	for range lastFree - firstFree {
		// Another run on the same machine begins elsewhere.
		port := firstFree + (int64(os.Getpid())*97+nextFree.Add(1))%(lastFree-firstFree)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		return ln.Addr().String(), ln.Close()
	}
	return "", fmt.Errorf("no free port from %d to %d", firstFree, lastFree)
}
