package servers

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// SignalOnExit sends a signal to a process when this one ends, also by a panic, a time limit or
// SIGKILL. The caller calls release when the process has ended, since another process may get its
// pid later.
//
// A shell waits for a line from a pipe. The system closes the pipe when this process ends, and the
// shell then sends the signal. The line that release writes ends the shell without it.
func SignalOnExit(pid int, sig syscall.Signal) (release func(), err error) {
	//nolint:noctx // it outlives this process on purpose
	guard := exec.Command("sh", "-c", `read -r line || kill -"$1" "$0"`, strconv.Itoa(pid), strconv.Itoa(int(sig)))
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signals of the terminal
	pipe, err := guard.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard of process %d: %w", pid, err)
	}
	if err := guard.Start(); err != nil {
		return nil, fmt.Errorf("guard of process %d: %w", pid, err)
	}
	return func() {
		_, _ = io.WriteString(pipe, "release\n")
		_ = pipe.Close()
		_ = guard.Wait()
	}, nil
}
