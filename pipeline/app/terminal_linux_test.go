package app

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// pseudoTerminal returns both ends of a terminal: what is written to screen is read from person.
func pseudoTerminal(t *testing.T) (person *bufio.Reader, screen *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	control := func(request uintptr, value *int32) {
		conn, err := master.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, conn.Control(func(fd uintptr) {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(value)))
			require.Zero(t, errno)
		}))
	}
	var unlocked, number int32
	control(syscall.TIOCSPTLCK, &unlocked)
	control(syscall.TIOCGPTN, &number)
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	return bufio.NewReader(master), screen
}

func TestTheLogOnATerminalIsForPeople(t *testing.T) {
	t.Parallel()
	const json, text = `^\{"time":"\d{4}-.*"level":"INFO","msg":"waiting","at_most":"15s"\}\r\n$`, `^time=\d{4}-\S+ level=INFO msg=waiting at_most=15s\r\n$`
	const plain, colored = `^\d\d:\d\d:\d\d INFO  waiting at_most=15s\r\n$`, "^\\d\\d:\\d\\d:\\d\\d \x1b\\[32mINFO \x1b\\[0m waiting at_most=15s\r\n$"
	for name, c := range map[string]struct {
		format  string
		environ []string
		want    string
	}{
		"a terminal":                  {"auto", []string{"TERM=xterm-256color"}, colored},
		"a terminal of unknown kind":  {"auto", nil, colored},
		"colors are not wanted":       {"auto", []string{"TERM=xterm", "NO_COLOR=1"}, plain},
		"an empty variable is none":   {"auto", []string{"NO_COLOR="}, colored},
		"a terminal without colors":   {"auto", []string{"TERM=dumb"}, plain},
		"a format for programs, JSON": {"json", nil, json},
		"a format for programs, text": {"text", nil, text},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			person, screen := pseudoTerminal(t)
			newLogger(screen, LogSettings{Format: c.format}, c.environ).Info("waiting", slog.Duration("at_most", 15*time.Second))
			line, err := person.ReadString('\n')
			require.NoError(t, err)
			require.Regexp(t, c.want, line)
		})
	}
}

// What is no terminal gets the format for programs, whatever the variables say about colors.
func TestTheLogInAFileIsForPrograms(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(name)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	newLogger(file, LogSettings{Format: "auto"}, []string{"TERM=xterm", "CLICOLOR_FORCE=1"}).Info("waiting")
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Regexp(t, `^\{"time":"\d{4}-.*"level":"INFO","msg":"waiting"\}\n$`, string(got))
}
