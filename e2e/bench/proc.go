package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

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

// start runs a program with both outputs in process.out, until the end of the trial.
func (t *trial) start(name, path string, args ...string) *process {
	p := &process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})} //nolint:noctx // stop ends it
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	check(p.cmd.Start())
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
	t.cleanup(p.stop)
	check(err)
	return p
}

// startProduct runs the binary with settings, until it is ready.
func (t *trial) startProduct(ctx context.Context, name string, settings map[string]any) *process {
	p := t.start(name, t.millrace, "run", "--config", t.writeSettings(name, settings))
	p.await(ctx, `"msg":"running"`)
	return p
}

// writeSettings writes a settings file from settings by their dotted paths.
func (e *environment) writeSettings(name string, settings map[string]any) (path string) {
	tree := map[string]any{}
	for key, value := range settings {
		at, names := tree, strings.Split(key, ".")
		for _, name := range names[:len(names)-1] {
			if _, ok := at[name]; !ok {
				at[name] = map[string]any{}
			}
			at, _ = at[name].(map[string]any)
		}
		at[names[len(names)-1]] = value
	}
	path = filepath.Join(e.dir, name+".yaml")
	check(os.WriteFile(path, must(yaml.Marshal(tree)), 0o600))
	return path
}

// await waits until the process has printed text.
func (p *process) await(ctx context.Context, text string) {
	until(ctx, 5*time.Millisecond, func() bool {
		if strings.Contains(p.out.String(), text) {
			return true
		}
		p.alive()
		return false
	})
}

// awaitReport waits for a line that begins with text, and decodes the JSON that follows.
func (p *process) awaitReport(ctx context.Context, text string, into any) {
	within(ctx, 2*time.Minute, p.name+" did not receive everything", func(ctx context.Context) {
		p.await(ctx, text)
		until(ctx, 5*time.Millisecond, func() bool {
			_, report, _ := strings.Cut(p.out.String(), text)
			line, _, complete := strings.Cut(report, "\n")
			if complete {
				check(json.Unmarshal([]byte(line), into))
			}
			return complete
		})
	})
}

// alive fails when the process has ended.
func (p *process) alive() {
	select {
	case <-p.done:
		check(fmt.Errorf("%s ended:\n%s", p.name, p.tail()))
	default:
	}
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

func (p *process) cpu() time.Duration { return cpuTime(p.cmd.Process.Pid) }

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

// The sizes of a process: the present one and the largest one.
const resident, peak = "VmRSS", "VmHWM"

// memory returns a size of the process in bytes.
func (p *process) memory(size string) int64 {
	text := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))))
	_, rest, found := strings.Cut(text, "\n"+size+":")
	expect(found, "the status of %s has no %s", p.name, size)
	return leading([]byte(strings.TrimSpace(rest))) << 10
}

// leading returns the number at the beginning of a text.
func leading(text []byte) (n int64) {
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int64(c-'0')
	}
	return n
}
