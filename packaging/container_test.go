package packaging_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
)

// container runs the image the way a runtime does: as process 1 of its own, as the image's user, in
// the image's environment, with a host name of its own, on a root that is read-only. It shares the network.
type container struct {
	root   string
	config v1.Config
}

func newContainer(t *testing.T) container {
	t.Helper()
	c := release(t)
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("only root on Linux, with the right to mount, can run the image: %v %s", err, out)
	}
	img := images(t, c)["linux-"+runtime.GOARCH]
	config, err := img.ConfigFile()
	require.NoError(t, err)
	root := unpack(t, img)
	for _, dir := range []string{"proc", "dev", "data"} { // a runtime makes the folders that it mounts
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	return container{root, config.Config}
}

const enter = `
echo "container-$(date +%N)" >/proc/sys/kernel/hostname
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro,nosuid,nodev "$ROOT"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
if [ -n "$DATA" ]; then mount --bind "$DATA" "$ROOT/data"; fi
printf %s "$READONLY" | while read -r source target; do mount --bind -o ro "$source" "$ROOT$target"; done
if [ -n "$TEMPORARY" ]; then mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"; fi
exec "$@"
`

// volumes are what is mounted.
type volumes struct {
	data      string            // folder at /data
	temporary bool              // memory at /tmp
	readOnly  map[string]string // folder or file at a path, which may not be changed
}

// process is a running container.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	output *buffer
	done   chan struct{}
}

func (c container) start(t *testing.T, v volumes, env []string, args ...string) *process {
	t.Helper()
	if len(args) == 0 {
		args = c.config.Cmd
	}
	chroot, err := exec.LookPath("chroot")
	require.NoError(t, err)
	line := []string{"--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-euc", enter, "sh", "env", "-i"}
	line = append(line, slices.Concat(c.config.Env, env)...)
	line = append(line, chroot, "--userspec="+c.config.User, c.root)
	line = append(line, slices.Concat(c.config.Entrypoint, args)...)
	p := &process{t: t, cmd: exec.Command("unshare", line...), output: &buffer{}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "ROOT="+c.root, "DATA="+v.data, "READONLY="+c.mountPoints(t, v.readOnly),
		"TEMPORARY="+map[bool]string{true: "yes"}[v.temporary])
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		if inside := p.inside(); inside != 0 {
			_ = syscall.Kill(inside, syscall.SIGKILL)
		}
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// mountPoints makes what a runtime makes before it mounts, and returns a line per mount.
func (c container) mountPoints(t *testing.T, mounts map[string]string) (lines string) {
	t.Helper()
	for target, source := range mounts {
		info, err := os.Stat(source)
		require.NoError(t, err)
		point := filepath.Join(c.root, target)
		if info.IsDir() {
			require.NoError(t, os.MkdirAll(point, 0o755))
		} else if _, err := os.Stat(point); err != nil {
			require.NoError(t, os.WriteFile(point, nil, 0o644))
		}
		lines += source + " " + target + "\n"
	}
	return lines
}

// inside returns the process 1 of the container, or 0 when it has ended.
func (p *process) inside() int {
	id := strconv.Itoa(p.cmd.Process.Pid)
	children, _ := os.ReadFile(filepath.Join("/proc", id, "task", id, "children"))
	child, _ := strconv.Atoi(strings.TrimSpace(string(children)))
	return child
}

// wait returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(5 * time.Minute):
		require.FailNow(p.t, "the container does not end", "%s", p.output)
	}
	return p.cmd.ProcessState.ExitCode()
}

// operations returns the address of the operations server from the log.
func (p *process) operations() string {
	for text := range strings.Lines(p.output.String()) {
		var line struct{ What, Address string }
		if json.Unmarshal([]byte(text), &line) == nil && line.What == "operations" {
			return line.Address
		}
	}
	return ""
}

// eventually waits for a condition, and fails at once when the container ends before.
func (p *process) eventually(what string, condition func() bool) {
	p.t.Helper()
	met := false
	require.Eventually(p.t, func() bool {
		select {
		case <-p.done:
			return true
		default:
			met = condition()
			return met
		}
	}, 2*time.Minute, 50*time.Millisecond, "%s: %s", what, p.output)
	require.True(p.t, met, "%s: it has ended: %s", what, p.output)
}

// ready waits until the operations server says so.
func (p *process) ready() {
	p.t.Helper()
	p.eventually("ready", func() bool {
		address := p.operations()
		if address == "" {
			return false
		}
		answer, err := http.Get(address + "/readyz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// stops sends the signal that the configuration of the image names, and waits for an end in order.
func (p *process) stops() {
	p.t.Helper()
	inside := p.inside()
	require.NotZero(p.t, inside, "it has ended: %s", p.output)
	require.NoError(p.t, syscall.Kill(inside, syscall.SIGTERM))
	require.Zero(p.t, p.wait(), "%s", p.output)
}

// buffer takes what the container writes, while the test reads it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// writable returns a folder that belongs to the user of the image.
func writable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, 65532, 65532))
	return dir
}
