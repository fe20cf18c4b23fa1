//go:build faults

package failpoint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain makes the test binary the process that is lost, when it is started as one.
func TestMain(m *testing.M) {
	reaches, err := strconv.Atoi(os.Getenv("REACHES"))
	if err != nil {
		os.Exit(m.Run())
	}
	for i := range reaches {
		_, _ = os.Stdout.WriteString(strconv.Itoa(i+1) + "\n")
		Hit(AfterInsert)
	}
	if os.Getenv("THEN_WAIT") != "" {
		for range time.Tick(time.Millisecond) {
			Hit(AfterRead)
		}
	}
}

// lines is what a child has written so far.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) has(text string) bool { return strings.Contains(l.String(), text) }

func child(t *testing.T, env ...string) (*exec.Cmd, *lines) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	out := &lines{}
	cmd.Stdout = out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, out
}

func TestKillAtTheNthHit(t *testing.T) {
	t.Parallel()
	cmd, out := child(t, "REACHES=9", "MILLRACE_FAULT_POINT=before-xack:1,after-insert:3")
	require.Error(t, cmd.Wait())
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	require.Equal(t, "1\n2\n3\n", out.String())
}

func TestStopUntilItIsWoken(t *testing.T) {
	t.Parallel()
	cmd, out := child(t, "REACHES=4", "MILLRACE_FAULT_POINT=after-insert:2:stop")
	stat := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "stat")
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(stat)
		return bytes.Contains(text, []byte(") T "))
	}, 2*time.Minute, time.Millisecond, "stopped")
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, cmd.Wait())
	require.Equal(t, "1\n2\n3\n4\n", out.String())
}

func TestArmedWhileItRuns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "point")
	cmd, out := child(t, "REACHES=1", "THEN_WAIT=1", "MILLRACE_FAULT_FILE="+file)
	require.NoError(t, os.WriteFile(file, []byte("after-read:1000\n"), 0o600))
	// A signal before the first line would end the child: it does not listen yet.
	require.Eventually(t, func() bool { return out.has("1\n") }, 2*time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	require.Error(t, cmd.Wait())
	require.NoFileExists(t, file)
	require.FileExists(t, file+".armed")
}

func TestPanicAtEveryNth(t *testing.T) {
	ts, err := parse("after-insert:*3:panic")
	require.NoError(t, err)
	before := triggers.Swap(&ts)
	t.Cleanup(func() { triggers.Store(before) })
	panics := 0
	for range 10 {
		func() {
			defer func() {
				if recover() != nil {
					panics++
				}
			}()
			Hit(AfterInsert)
		}()
	}
	require.Equal(t, 3, panics)
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"after-insert", "nowhere:1", "after-insert:0", "after-insert:x", "after-insert:1:dance", "after-insert:1:kill:2"} {
		_, err := parse(text)
		require.ErrorContains(t, err, text)
	}
	none, err := parse("\n")
	require.NoError(t, err)
	require.Empty(t, none)
}
