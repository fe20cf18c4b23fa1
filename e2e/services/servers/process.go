package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// state is the record of a running server. Another process may get its pid later; born
// distinguishes the two.
type state struct {
	By   string `json:"by"`
	PID  int    `json:"pid,omitempty"`
	Born string `json:"born,omitempty"`
}

func (f *Fleet) stateFile(name string) string { return filepath.Join(f.opts.Dir, name+".state") }

func (f *Fleet) writeState(name string, st state) error {
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	file := f.stateFile(name)
	if err := os.WriteFile(file+".new", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

func (f *Fleet) removeState(name string) error {
	if err := os.Remove(f.stateFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// running returns the state of a server that this folder started and that has not ended since.
func (f *Fleet) running(name string) (state, bool) {
	b, err := os.ReadFile(f.stateFile(name))
	if err != nil {
		return state{}, false
	}
	var st state
	if json.Unmarshal(b, &st) != nil {
		return state{}, false
	}
	if st.By == byCompose {
		return st, true
	}
	return st, st.PID > 0 && born(st.PID) == st.Born && st.Born != ""
}

// spawn starts cmd and records it. The command runs in a session of its own, so that it gets no
// signals of the terminal and can outlive this process. ended is closed when it ends.
func (f *Fleet) spawn(name string, cmd *exec.Cmd, logFile string) (ended <-chan struct{}, err error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	defer log.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, log, log
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	err = f.writeState(name, state{By: byPackages, PID: cmd.Process.Pid, Born: born(cmd.Process.Pid)})
	release := func() {}
	if err == nil && f.opts.EndWithProcess {
		release, err = SignalOnExit(cmd.Process.Pid, exitSignal(name))
	}
	done := make(chan struct{})
	go func() { // ends with the process, which Down or Kill ends
		defer close(done)
		_ = cmd.Wait() // its log has the reason
		release()
	}()
	if err != nil {
		_ = cmd.Process.Kill()
		<-done
		return nil, err
	}
	return done, nil
}

// exitSignal ends a server at once. PostgreSQL removes its shared memory on SIGQUIT only.
func exitSignal(name string) syscall.Signal {
	if name == Postgres {
		return syscall.SIGQUIT
	}
	return syscall.SIGKILL
}

// end sends sig, waits until the process has ended, with SIGKILL after 20 seconds, and removes its
// record.
func (f *Fleet) end(ctx context.Context, name string, sig syscall.Signal) error {
	st, running := f.running(name)
	if !running {
		return f.removeState(name)
	}
	if err := syscall.Kill(st.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop process %d: %w", st.PID, err)
	}
	hard := time.NewTimer(20 * time.Second)
	defer hard.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for born(st.PID) == st.Born {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d has not ended: %w", st.PID, ctx.Err())
		case <-hard.C:
			if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d: %w", st.PID, err)
			}
		case <-tick.C:
		}
	}
	return f.removeState(name)
}

// born returns a mark of the start of a process, which no other process of that pid has. It is
// empty if there is no such process, or only its zombie.
func born(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err == nil {
		// pid (name) state ppid …: the name may hold blanks and parentheses, so count from its end.
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		fields := strings.Fields(rest)
		const stateField, startField = 0, 19
		if len(fields) <= startField || fields[stateField] == "X" {
			return ""
		}
		if fields[stateField] == "Z" {
			// Other threads of a killed process may exist for a moment, and keep its port.
			if threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task"); err != nil || len(threads) <= 1 {
				return ""
			}
		}
		return fields[startField]
	}
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		return ""
	}
	out, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output() //nolint:noctx // returns at once
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// lockDir takes the folder for this process; others wait their turn.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("waiting for another process on %s: %w", dir, ctx.Err())
		case <-tick.C:
		}
	}
}
