package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// process is a program under measurement. It is killed when the benchmark ends, however it ends.
type process struct {
	name string
	cmd  *exec.Cmd
	out  pipelinetest.Buffer
	done chan struct{} // closed when the process has ended
}

// start runs a program with both outputs in process.out.
func start(name, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})} //nolint:noctx // stop ends it
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	release, err := servers.SignalOnExit(p.cmd.Process.Pid, syscall.SIGKILL)
	if err != nil {
		_ = p.cmd.Process.Kill()
		release = func() {}
	}
	go func() {
		_ = p.cmd.Wait() // the reason is in the output
		release()
		close(p.done)
	}()
	return p, err
}

// await waits until the process has printed text.
func (p *process) await(ctx context.Context, text string) error {
	return until(ctx, 5*time.Millisecond, func() (bool, error) {
		if strings.Contains(p.out.String(), text) {
			return true, nil
		}
		select {
		case <-p.done:
			return false, fmt.Errorf("%s ended before it printed %q:\n%s", p.name, text, p.tail())
		default:
			return false, nil
		}
	})
}

func (p *process) tail() string {
	text := p.out.String()
	return text[max(0, len(text)-4_000):]
}

// stop ends the process in order, or kills it after 30 s.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// until repeats a check until it is true, fails, or ctx ends.
func until(ctx context.Context, every time.Duration, check func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// cpuTime returns the CPU time of a process, of its live children, and of those that it has reaped.
func cpuTime(pid int) time.Duration {
	const utime, cstime, perSecond = 11, 14, 100 // fields after the name; USER_HZ
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0 // it has ended
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var ticks int64
	for _, f := range fields[utime : cstime+1] {
		n, _ := strconv.ParseInt(f, 10, 64) // the kernel writes numbers
		ticks += n
	}
	total := time.Duration(ticks) * time.Second / perSecond
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // none
	for _, child := range strings.Fields(string(children)) {
		n, _ := strconv.Atoi(child)
		total += cpuTime(n)
	}
	return total
}

// memory returns a line of /proc/PID/status in bytes: VmHWM is the peak, VmRSS the present size.
func memory(pid int, line string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no " + line + " in the process status")
}
