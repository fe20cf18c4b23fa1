package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// processesStop bounds the orderly end of all Processes.
const processesStop = 15 * time.Second

// Processes are further processes of this binary, for a demo. Its methods are called by one
// goroutine.
type Processes struct {
	h        *Host
	dir      string // for settings and logs
	off      []string
	list     []*Process
	failed   chan error // the first end of a process that neither Stop nor Kill has ended
	stopping atomic.Bool
}

// Process is one of Processes.
type Process struct {
	cmd    *exec.Cmd
	ended  chan struct{}
	killed atomic.Bool
}

// processes returns no process so far. Their settings and logs will be in dir. They switch the
// plugins in off off.
func (h *Host) processes(dir string, off ...string) *Processes {
	return &Processes{h: h, dir: dir, off: off, failed: make(chan error, 1)}
}

// Start starts the command run with settings, dotted path to value. It has no settings of the
// environment.
func (p *Processes) Start(ctx context.Context, name string, settings map[string]any) (*Process, error) {
	settings = maps.Clone(settings)
	switchOff(settings, p.off)
	file := filepath.Join(p.dir, name+".yaml")
	text, err := json.Marshal(nested(settings)) // JSON is YAML
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("settings of %s: %w", name, err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	one := &Process{ended: make(chan struct{})}
	one.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, "run", "--config", file) //nolint:gosec // this binary
	one.cmd.Stdout, one.cmd.Stderr = log, log
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, p.h.Variable("")) {
			one.cmd.Env = append(one.cmd.Env, v)
		}
	}
	if err := one.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.list = append(p.list, one)
	go func() {
		defer close(one.ended)
		_ = one.cmd.Wait() // its state is in the error
		if one.killed.Load() || p.stopping.Load() {
			return
		}
		text, _ := os.ReadFile(log.Name())
		select {
		case p.failed <- fmt.Errorf("%s ended (%s): %s", name, one.cmd.ProcessState, Printable(string(text))):
		default: // the first one counts
		}
	}()
	return one, nil
}

// nested returns settings by dotted path as a tree.
func nested(settings map[string]any) map[string]any {
	tree := map[string]any{}
	for path, value := range settings {
		at := tree
		keys := strings.Split(path, ".")
		for _, key := range keys[:len(keys)-1] {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at, _ = at[key].(map[string]any)
		}
		at[keys[len(keys)-1]] = value
	}
	return tree
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() error {
	p.killed.Store(true)
	return p.cmd.Process.Kill()
}

// stop ends all processes in order. Those that hang are killed.
func (p *Processes) stop() {
	p.stopping.Store(true)
	for _, one := range p.list {
		_ = one.cmd.Process.Signal(os.Interrupt) // an ended process takes none
	}
	limit := time.After(processesStop)
	for _, one := range p.list {
		select {
		case <-one.ended:
		case <-limit:
			limit = time.After(0) // also for the others
			_ = one.cmd.Process.Kill()
			<-one.ended
		}
	}
}
