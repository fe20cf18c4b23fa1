package app_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// serviceManager reads what a process tells systemd, at a socket like systemd's.
type serviceManager struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func newServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // t.TempDir may be too long for the path of a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &serviceManager{t, conn, path}
}

// next returns the next message.
func (m *serviceManager) next() string {
	m.t.Helper()
	require.NoError(m.t, m.conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	text := make([]byte, 4096)
	n, err := m.conn.Read(text)
	require.NoError(m.t, err)
	return string(text[:n])
}

// mark sends a message of the test itself, which arrives after those that were sent before it.
func (m *serviceManager) mark(text string) error {
	conn, err := net.Dial("unixgram", m.path)
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(text))
	return errors.Join(err, conn.Close())
}

// options returns those of `run`, with the socket in its environment.
func (m *serviceManager) options(p pipeline.Plugin, environ ...string) app.Options {
	o := options(p, "run")
	o.Environ = append([]string{"NOTIFY_SOCKET=" + m.path, "MILL__INSTANCE_ID=mill-7"}, environ...)
	return o
}

const (
	toldStarting = "STATUS=Starting: waits at most 1m0s for its servers\nEXTEND_TIMEOUT_USEC=70000000"
	toldReady    = "READY=1\nSTATUS=Running 1 route as mill-7"
	toldStopping = "STOPPING=1\nSTATUS=Draining for at most 30s: %s\nEXTEND_TIMEOUT_USEC=40000000"
)

func TestTheServiceManagerIsToldOfTheLifeOfRun(t *testing.T) {
	t.Parallel()
	m, p := newServiceManager(t), newToy()
	p.start = func(context.Context) error { return m.mark("started") }
	p.stop = func(context.Context) error { return m.mark("stopped") }
	ctx, cancel := context.WithCancelCause(t.Context())
	done := start(ctx, m.options(p))
	require.Equal(t, toldStarting, m.next())
	require.Equal(t, "started", m.next(), "it is not ready before its services are")
	require.Equal(t, toldReady, m.next())
	cancel(errors.New("moved\nMAINPID=1"))
	require.Equal(t, strings.ReplaceAll(toldStopping, "%s", "moved\uFFFDMAINPID=1"), m.next(), "the reason adds no line")
	require.Equal(t, "stopped", m.next())
	require.Equal(t, app.ExitOK, await(t, done).code)
	require.NoError(t, m.mark("end"))
	require.Equal(t, "end", m.next())
}

// A settings file with longer limits needs no other unit.
func TestTheServiceManagerIsAskedForAsLongAsTheSettingsSay(t *testing.T) {
	t.Parallel()
	m := newServiceManager(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, m.options(newToy(), "MILL__START_TIMEOUT=5m", "MILL__STOP_TIMEOUT=2m"))
	require.Contains(t, m.next(), "\nEXTEND_TIMEOUT_USEC=310000000")
	require.Equal(t, toldReady, m.next())
	cancel()
	require.Contains(t, m.next(), "\nEXTEND_TIMEOUT_USEC=130000000")
	require.Equal(t, app.ExitOK, await(t, done).code)
}

func TestTheServiceManagerIsToldOfAStartThatEnds(t *testing.T) {
	t.Parallel()
	m, p, starting := newServiceManager(t), newToy(), make(chan struct{})
	p.start = func(ctx context.Context) error {
		close(starting)
		<-ctx.Done()
		return pipeline.ErrUnavailable
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, m.options(p))
	require.Equal(t, toldStarting, m.next())
	await(t, starting)
	cancel()
	require.Equal(t, strings.ReplaceAll(toldStopping, "%s", "context canceled"), m.next())
	require.Equal(t, app.ExitOK, await(t, done).code)
}

func TestTheServiceManagerIsToldOfAPartThatFails(t *testing.T) {
	t.Parallel()
	m, p := newServiceManager(t), newToy()
	done := start(t.Context(), m.options(p))
	require.Equal(t, toldStarting, m.next())
	require.Equal(t, toldReady, m.next())
	p.failed <- errors.New("the disk is full")
	require.Contains(t, m.next(), "the disk is full")
	require.Equal(t, app.ExitBad, await(t, done).code)
}

func TestTheWatchdogHearsOfTheProcessUntilItHasStopped(t *testing.T) {
	t.Parallel()
	m, p := newServiceManager(t), newToy()
	heard := make(chan struct{})
	p.stop = func(context.Context) error {
		<-heard
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, m.options(p, "WATCHDOG_USEC=2000"))
	require.Equal(t, toldStarting, m.next())
	require.Equal(t, toldReady, m.next(), "no sign of life comes before it")
	for range 3 {
		require.Equal(t, "WATCHDOG=1", m.next())
	}
	cancel()
	for m.next() == "WATCHDOG=1" { // until STOPPING=1
		continue
	}
	for range 3 {
		require.Equal(t, "WATCHDOG=1", m.next(), "it drains")
	}
	close(heard)
	require.Equal(t, app.ExitOK, await(t, done).code)
}

func TestOnlyRunTellsTheServiceManager(t *testing.T) {
	t.Parallel()
	m, p := newServiceManager(t), newToy()
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: func(context.Context, *app.Running) error { return nil }})
	})
	o := m.options(p, "WATCHDOG_USEC=2000")
	o.Args = []string{"do"}
	r := run(t.Context(), o)
	require.Equal(t, app.ExitOK, r.code, r.stderr)
	require.NoError(t, m.mark("end"))
	require.Equal(t, "end", m.next())
}

func TestRunWithoutAServiceManager(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tc := range map[string]struct {
		environ []string
		warned  bool
	}{
		"no socket":              {[]string{"WATCHDOG_USEC=2000"}, false},
		"a socket that is empty": {[]string{"NOTIFY_SOCKET="}, false},
		"nobody listens":         {[]string{"NOTIFY_SOCKET=" + missing}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			o := options(p, "run")
			o.Environ = tc.environ
			ctx, cancel := context.WithCancel(t.Context())
			done := start(ctx, o)
			p.feed.SendPayloads(`"world"`)
			require.Equal(t, "hello world", await(t, p.handled))
			cancel()
			r := await(t, done)
			require.Equal(t, app.ExitOK, r.code, r.stderr)
			require.Equal(t, tc.warned, strings.Contains(r.stderr, `"msg":"service manager not told"`), r.stderr)
		})
	}
}
