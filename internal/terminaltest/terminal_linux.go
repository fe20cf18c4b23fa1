// Package terminaltest has a terminal for tests of what people see.
package terminaltest

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Open returns both ends of a terminal of 80 columns and 24 lines: what is written to screen is read from
// person. Both are closed at the end of the test.
func Open(t testing.TB) (person *bufio.Reader, screen *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = master.Close() })
	control := func(request uintptr, value unsafe.Pointer) {
		conn, err := master.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, conn.Control(func(fd uintptr) {
			_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(value))
			require.Zero(t, errno)
		}))
	}
	var unlocked, number int32
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	size := [4]uint16{24, 80} // struct winsize
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	require.NoError(t, master.SetReadDeadline(time.Now().Add(2*time.Minute)), "what is never shown must not be waited for until the test binary ends")
	screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = screen.Close() })
	return bufio.NewReader(master), screen
}
