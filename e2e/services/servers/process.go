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

// state is what the folder remembers of a running server. A pid alone may be somebody else's by now:
// born tells them apart.
type state struct {
	By   string `json:"by"`
	PID  int    `json:"pid,omitempty"`
	Born string `json:"born,omitempty"`
}

func (f *Fleet) stateFile(name string) string { return filepath.Join(f.opts.Dir, name+".state") }

func (f *Fleet) remember(name string, st state) error {
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

func (f *Fleet) forget(name string) error {
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

// spawn starts cmd in a session of its own, so that it outlives this process and takes no terminal's
// signals, and remembers it at once. ended is closed when it ends.
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
	rememberErr := f.remember(name, state{By: byPackages, PID: cmd.Process.Pid, Born: born(cmd.Process.Pid)})
	done := make(chan struct{})
	go func() { // ends with the process, which Down or Kill ends
		defer close(done)
		_ = cmd.Wait() // how it ended stands in its log
	}()
	if rememberErr != nil {
		_ = cmd.Process.Kill()
		<-done
		return nil, rememberErr
	}
	return done, nil
}

// end sends sig, waits until the process is gone, with SIGKILL after 20 seconds, and forgets it.
func (f *Fleet) end(ctx context.Context, name string, sig syscall.Signal) error {
	st, running := f.running(name)
	if !running {
		return f.forget(name)
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
	return f.forget(name)
}

// born returns a mark of when the process began that no other process of that pid has, or "" when
// there is no such process, or only its zombie.
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
			// Of a process that was killed, other threads may still be there for a moment, and its port with them.
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
