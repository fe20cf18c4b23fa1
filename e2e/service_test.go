package e2e

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// service is a process of the binary with a public server.
type service struct {
	t       *testing.T
	program string
	config  string
	env     []string // more settings
	url     string
	probe   string
	cmd     *exec.Cmd
	done    chan struct{}
	log     *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// userHeader names the user of a request.
const userHeader = "X-User"

// start starts the process, also again, and returns when it answers.
func (s *service) start() {
	s.t.Helper()
	s.launch()
	s.ready()
}

func (s *service) launch() {
	s.t.Helper()
	s.cmd = exec.Command(s.program, "run", "--config", s.config)
	s.cmd.Env = append(os.Environ(), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	var err error
	s.done, err = startBound(s.cmd)
	require.NoError(s.t, err)
}

func (s *service) ready() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+s.probe, http.NoBody)
		require.NoError(s.t, err)
		r.Header.Set(userHeader, "probe")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusNotFound
	}, 2*time.Minute, 50*time.Millisecond, "%s", s.log)
}

func (s *service) kill() {
	if s.done != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// ends waits until the process has ended well after a SIGTERM.
func (s *service) ends() {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(2 * time.Minute):
		require.FailNow(s.t, "the process did not end", "%s", s.log)
	}
	require.Zero(s.t, s.cmd.ProcessState.ExitCode(), "%s", s.log)
}

// command runs a command of the binary with the settings of the service.
func (s *service) command(stdin string, args ...string) (string, int) {
	cmd := exec.Command(binary(s.t), append(args, "--config", s.config)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, _ := cmd.CombinedOutput() // the code says whether it failed
	return string(out), cmd.ProcessState.ExitCode()
}
