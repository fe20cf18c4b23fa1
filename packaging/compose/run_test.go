package compose_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// image is the user that the image runs as.
const image = 65532

var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "millrace-compose-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the user of the image must reach it
	}
	if err != nil {
		panic(err)
	}
	workDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// shared returns a folder that each user can enter.
func shared(t *testing.T) string {
	t.Helper()
	whole := t.TempDir()
	for dir := whole; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	return whole
}

var build = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("make", "--no-print-directory", "-C", top, "binary", "DIST="+filepath.Join(workDir, "dist"))
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "MAKEFLAGS" && name != "MAKELEVEL" && name != "MFLAGS" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("make binary: %w\n%s", err, out)
	}
	found, err := filepath.Glob(filepath.Join(workDir, "dist/*/millrace"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("make binary wrote %v: %w\n%s", found, err, out)
	}
	return found[0], nil
})

// host is the stack on this machine: its secrets, its settings with other addresses, and its binary.
type host struct {
	t         *testing.T
	binary    string
	secrets   string
	addresses []string // old and new ones, for the settings and the commands
	env       []string // more settings
}

func newHost(t *testing.T) *host {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the binary")
	}
	h := &host{t: t, secrets: secrets(t)}
	h.addresses = []string{"/run/secrets/", h.secrets + "/"}
	binary, err := build()
	require.NoError(t, err)
	h.binary = binary
	return h
}

// command returns a process as the service's container would run it, with the settings, the environment and the
// user that Compose gives it.
func (h *host) command(s types.ServiceConfig, args ...string) *exec.Cmd {
	h.t.Helper()
	replace := strings.NewReplacer(h.addresses...).Replace
	cmd := exec.Command(h.binary)
	for _, arg := range args {
		cmd.Args = append(cmd.Args, replace(arg))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: image, Gid: image}, Pdeathsig: syscall.SIGKILL}
	cmd.Dir = "/"
	cmd.Env = append(cmd.Env, "PATH=/usr/bin")
	for key, value := range s.Environment {
		if key == "MILLRACE_CONFIG" {
			text, err := os.ReadFile(mounted(h.t, s, *value))
			require.NoError(h.t, err)
			file := filepath.Join(shared(h.t), "millrace.yaml")
			require.NoError(h.t, os.WriteFile(file, []byte(replace(string(text))), 0o644))
			value = &file
		}
		cmd.Env = append(cmd.Env, key+"="+*value)
	}
	cmd.Env = append(cmd.Env, h.env...)
	return cmd
}

func TestTheSettingsOfEachServiceAreValid(t *testing.T) {
	h := newHost(t)
	for name, s := range ours(stack(t)) {
		t.Run(name, func(t *testing.T) {
			if name == "money" { // it reads no settings
				require.Empty(t, s.Environment)
				return
			}
			out, err := h.command(s, "validate").CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "The settings are valid (profile "+*s.Environment["MILLRACE__PROFILE"]+", ")
		})
	}
	require.NoError(t, os.Chown(filepath.Join(h.secrets, "token.pem"), 0, 0))
	require.NoError(t, os.Remove(filepath.Join(h.secrets, "ledger-dsn")))
	for _, name := range []string{"broker", "worker"} {
		out, err := h.command(stack(t).Services[name], "validate").CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 2, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), h.secrets, "the secret that it can not read")
	}
}

// schema makes a schema in PostgreSQL, which is removed with the test, and returns a DSN for it.
func schema(t *testing.T, dsn string) string {
	t.Helper()
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	name := fmt.Sprintf("compose_%d_%d", os.Getpid(), time.Now().UnixNano())
	_, err = admin.Exec(ctx, "CREATE SCHEMA "+name)
	require.NoError(t, err)
	require.NoError(t, admin.Close(ctx))
	t.Cleanup(func() {
		ctx := context.Background() // the one of the test has ended
		admin, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer admin.Close(ctx)
		_, err = admin.Exec(ctx, "DROP SCHEMA "+name+" CASCADE")
		require.NoError(t, err)
	})
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	query := u.Query()
	query.Set("search_path", name)
	u.RawQuery = query.Encode()
	return u.String()
}

// database returns the number of an empty database of Valkey that no other test has, also in another run.
func database(t *testing.T, addr string) int {
	t.Helper()
	for number := 15; number > 0; number-- {
		// The name that the tests of the other modules lock, too.
		name := fmt.Sprintf("millrace-test-redis-%s-%d.lock", strings.ReplaceAll(addr, ":", "-"), number)
		f, err := os.OpenFile(filepath.Join(os.TempDir(), name), os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			f.Close()
			continue
		}
		t.Cleanup(func() { f.Close() })
		flush := func() {
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "SELECT %d\r\nFLUSHDB\r\nQUIT\r\n", number)
			require.NoError(t, err)
			answer := bufio.NewReader(conn)
			for range 3 {
				line, err := answer.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "+OK\r\n", line)
			}
		}
		flush()
		t.Cleanup(flush)
		return number
	}
	t.Skip("each database of Valkey is in use")
	return 0
}

// running is a service that was started.
type running struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	output *buffer
	done   chan struct{}
}

func (h *host) start(s types.ServiceConfig, args ...string) *running {
	h.t.Helper()
	r := &running{t: h.t, name: s.Name, cmd: h.command(s, args...), output: &buffer{}, done: make(chan struct{})}
	r.cmd.SysProcAttr.Pdeathsig = 0 // it would end with the thread that started it
	r.cmd.Stdout, r.cmd.Stderr = r.output, r.output
	require.NoError(h.t, r.cmd.Start())
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait()
	}()
	h.t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
	})
	return r
}

// eventually waits for a condition, and fails at once when the process ends before.
func (r *running) eventually(what string, condition func() bool) {
	r.t.Helper()
	met := false
	require.Eventually(r.t, func() bool {
		select {
		case <-r.done:
			return true
		default:
			met = condition()
			return met
		}
	}, 2*time.Minute, 50*time.Millisecond, "%s: %s", r.name, what)
	require.True(r.t, met, "%s has ended: %s", r.name, r.output)
}

// ready waits until the operations server says so.
func (r *running) ready() {
	r.t.Helper()
	r.eventually("ready", func() bool {
		for line := range strings.Lines(r.output.String()) {
			var entry struct{ What, Address string }
			if json.Unmarshal([]byte(line), &entry) != nil || entry.What != "operations" {
				continue
			}
			answer, err := http.Get(entry.Address + "/readyz")
			if err != nil {
				return false
			}
			answer.Body.Close()
			return answer.StatusCode == http.StatusOK
		}
		return false
	})
}

// stops sends SIGTERM, as Compose does, and waits for the exit code.
func (r *running) stops() {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(r.t, "it does not stop", "%s: %s", r.name, r.output)
	}
	require.Zero(r.t, r.cmd.ProcessState.ExitCode(), "%s: %s", r.name, r.output)
}

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

// server returns the address of a real server of the tests.
func server(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if addr := os.Getenv(name); addr != "" {
			return addr
		}
	}
	t.Skipf("%s is not set", names[0])
	return ""
}

// The services are started in the order of the stack, with its settings and commands, in which only the addresses
// are replaced.
func TestTheStackRunsOnRealServers(t *testing.T) {
	kafka := server(t, "MILLRACE_TEST_KAFKA")
	valkey := server(t, "MILLRACE_TEST_VALKEY", "MILLRACE_TEST_REDIS")
	dsn := schema(t, server(t, "MILLRACE_TEST_POSTGRES"))
	h, project := newHost(t), stack(t)
	require.NoError(t, os.WriteFile(filepath.Join(h.secrets, "ledger-dsn"), []byte(dsn), 0o600))
	h.addresses = append(h.addresses,
		"kafka:9092", kafka, "valkey:6379", valkey, `":9464"`, `"127.0.0.1:0"`, ":8089", "127.0.0.1:0")
	h.env = []string{
		fmt.Sprintf("MILLRACE__PLUGINS__REDIS__DB=%d", database(t, valkey)), "MILLRACE__PLUGINS__WEB__LISTEN=127.0.0.1:0",
	}

	money := h.start(project.Services["money"], project.Services["money"].Command...)
	var address string
	money.eventually("it listens", func() bool {
		address = strings.TrimSpace(regexp.MustCompile(`http://127\.0\.0\.1:\d+ `).FindString(money.output.String()))
		return address != ""
	})
	h.addresses = append([]string{"http://money:8089", address}, h.addresses...)

	for _, name := range []string{"migrate", "topics"} {
		s := project.Services[name]
		for range 2 { // each `docker compose up` runs it again
			out, err := h.command(s, s.Command...).CombinedOutput()
			require.NoError(t, err, "%s: %s", name, out)
		}
	}
	var started []*running
	for _, s := range instances(project) {
		started = append(started, h.start(s, "run"))
	}
	require.Len(t, started, 5)
	for _, r := range started {
		r.ready()
	}
	for _, r := range append(started, money) {
		r.stops()
	}
}
