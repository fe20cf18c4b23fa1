package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Environment has servers inside the process, with their files in dataDir (empty: in memory only).
type Environment struct {
	// Start starts the servers and returns the settings that lead plugins to them, dotted path to value.
	// They win over all other settings, and those of plugins that the binary lacks are ignored. stop is
	// called after everything else has ended; it may be nil.
	Start func(ctx context.Context, dataDir string, log *slog.Logger) (overrides map[string]any, stop func(context.Context) error, err error)
	// Settings returns the same settings for commands that start nothing, such as validate, so that they
	// judge what `run` would use. A value that is known only after the start is replaced by one that is as
	// valid. It creates no files. Nil: there are none.
	Settings func(dataDir string) map[string]any
}

// Reachable is implemented by a plugin with servers inside the process, which commands use.
type Reachable interface {
	// Reach returns the settings that lead a command to them, dotted path to value. It is called
	// after the services were started.
	Reach() map[string]any
}

// connect returns the settings that lead to the servers of the environment. With a
// notice it starts the servers. Otherwise it finds those of the process that runs in the data
// folder.
func (h *Host) connect(ctx context.Context, l *Loaded, notice notice) (addresses map[string]any, stop func() error, err error) {
	stop = func() error { return nil }
	switch environment := h.opts.Environments[l.Settings.Environment]; {
	case environment.Start == nil:
		return nil, stop, nil
	case notice != nil:
		notice(ctx, l)
		addresses, stop, err = h.startEnvironment(ctx, l, environment)
	default:
		addresses, err = h.runningEnvironment(ctx, l.Settings)
	}
	return h.ofPlugins(addresses), stop, err
}

// ofPlugins removes the settings of plugins that the binary lacks.
func (h *Host) ofPlugins(addresses map[string]any) map[string]any {
	maps.DeleteFunc(addresses, func(path string, _ any) bool {
		return !slices.ContainsFunc(h.opts.Plugins, func(p pipeline.Plugin) bool { return strings.HasPrefix(path, section(p)+".") })
	})
	return addresses
}

// withAddresses returns the settings of a command with those of an environment, which win.
func withAddresses(overrides, addresses map[string]any) map[string]any {
	all := map[string]any{}
	maps.Copy(all, overrides)
	maps.Copy(all, addresses)
	return all
}

func (h *Host) startEnvironment(ctx context.Context, l *Loaded, environment Environment) (addresses map[string]any, stop func() error, err error) {
	s := l.Settings
	startCtx, cancel := context.WithTimeout(ctx, s.StartTimeout)
	defer cancel()
	addresses, stopServers, err := environment.Start(startCtx, s.DataDir, l.Logger)
	switch {
	case setting.Denied(err):
		return nil, nil, Usage("start the %s environment: %w; set data_dir (%s) to a folder that this process can write", s.Environment, err, h.Variable("data_dir"))
	case err != nil:
		return nil, nil, &unavailableError{err: fmt.Errorf("start the %s environment: %w", s.Environment, err)}
	}
	return addresses, func() error {
		if stopServers == nil {
			return nil
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout)
		defer cancel()
		if err := stopServers(stopCtx); err != nil {
			return fmt.Errorf("stop the %s environment: %w", s.Environment, err)
		}
		return nil
	}, nil
}

// notice reports that the servers are not real.
type notice func(context.Context, *Loaded)

const notReal = "nothing in this environment is real: its servers are inside this process and end with it"

// logNotReal is the notice in the log, at every level of it.
func logNotReal(ctx context.Context, l *Loaded) {
	line := slog.NewRecord(time.Now(), slog.LevelWarn, notReal, 0)
	line.AddAttrs(slog.String("environment", l.Settings.Environment))
	_ = l.Logger.Handler().Handle(ctx, line) // there is no place to report that a log line failed
}

// showNotReal is the notice for a person.
func (h *Host) showNotReal(context.Context, *Loaded) {
	fmt.Fprintf(h.Err(), "%s%s.\n\n", strings.ToUpper(notReal[:1]), notReal[1:])
}

// runningFile leads commands to the process that runs in a data folder. The process holds a lock on
// runningLock. Without the lock the file is that of a process that was killed.
const (
	runningFile = "running.json"
	runningLock = "running.lock"
)

type runningProcess struct {
	PID      int            `json:"pid"`
	Settings map[string]any `json:"settings"` // dotted path to value
}

// publishAddresses writes the running file of a process with an environment. remove removes it.
func publishAddresses(ctx context.Context, l *Loaded) (remove func(), err error) {
	dir := l.Settings.DataDir
	if l.addresses == nil || dir == "" {
		return func() {}, nil
	}
	settings := maps.Clone(l.addresses)
	for _, p := range l.Plugins {
		if r, ok := p.(Reachable); ok {
			maps.Copy(settings, r.Reach())
		}
	}
	text, err := json.MarshalIndent(runningProcess{os.Getpid(), settings}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	file := filepath.Join(dir, runningFile)
	err = os.WriteFile(file+".new", append(text, '\n'), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file) // a command never reads half of it
	}
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	// The lock comes last: it says that the file is this process's. A command holds it for a
	// moment. The end of ctx is a good end, and no reason to fail here.
	lock := flock.New(filepath.Join(dir, runningLock), flock.SetPermissions(0o600))
	lockCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer cancel()
	if _, err := lock.TryLockContext(lockCtx, lockRetry); err != nil {
		return nil, fmt.Errorf("data folder: %s is locked by another process: %w", lock.Path(), err)
	}
	return func() {
		if err := errors.Join(os.Remove(file), lock.Close()); err != nil {
			l.Logger.WarnContext(ctx, "running file not removed", logs.Err(err))
		}
	}, nil
}

const (
	lockRetry = 10 * time.Millisecond
	lockWait  = 10 * time.Second
)

// runningEnvironment returns the addresses in the running file of the data folder.
func (h *Host) runningEnvironment(ctx context.Context, s Settings) (map[string]any, error) {
	dir, err := filepath.Abs(s.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	absent := &unavailableError{err: fmt.Errorf("no %s environment is running in %s; start one with `%s run` and the same settings, or name others with --config",
		s.Environment, dir, h.opts.Name)}
	if _, err := os.Stat(filepath.Join(dir, runningFile)); s.DataDir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, absent
	}
	lock := flock.New(filepath.Join(dir, runningLock), flock.SetPermissions(0o600))
	free, err := lock.TryRLock()
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if free {
		return nil, errors.Join(absent, lock.Close())
	}
	// After the lock: before it, the file may be of a process that has ended.
	text, err := os.ReadFile(filepath.Join(dir, runningFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent
	} else if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	var process runningProcess
	if err := json.Unmarshal(text, &process); err != nil {
		return nil, fmt.Errorf("data folder: %s: %w", runningFile, err)
	}
	return process.Settings, nil
}
