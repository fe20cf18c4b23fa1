package app_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

func TestEnvironmentIsStartedFirstAndStoppedLast(t *testing.T) {
	t.Parallel()
	p, dir := newToy(), t.TempDir()
	o := options(p, "run", "--profile", "embedded")
	o.Environ = []string{"MILL__DATA_DIR=" + dir, "MILL__PLUGINS__TOY__GREETING=env"}
	o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {Start: func(_ context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		require.NotNil(t, log)
		p.order.add("servers in " + dir)
		return map[string]any{"plugins.toy.greeting": "servers", "plugins.another.address": "nowhere"}, func(context.Context) error {
			p.order.add("servers stopped")
			return nil
		}, nil
	}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, o)
	p.feed.SendPayloads(`"world"`)
	require.Equal(t, "servers world", await(t, p.handled), "the addresses of the environment win over everything")
	cancel()
	require.Zero(t, await(t, done).code)
	require.Equal(t, []string{"servers in " + dir, "start", "start", "stop", "stop", "servers stopped"}, p.order.all())

	t.Run("not for wrong settings of the process", func(t *testing.T) {
		q := newToy()
		o.Plugins, o.Environ = []pipeline.Plugin{q}, []string{"MILL__STOP_TIMEOUT=0s"}
		require.Equal(t, app.ExitUsage, run(t.Context(), o).code)
		require.Empty(t, q.order.all())
	})
	t.Run("stopped for wrong settings of a plugin", func(t *testing.T) {
		o.Environ = []string{"MILL__PLUGINS__TOY__EVERY=0s"}
		before := len(p.order.all())
		r := run(t.Context(), o)
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, "plugins.toy.every: must be > 0, got 0s")
		require.Equal(t, []string{"servers in .mill", "servers stopped"}, p.order.all()[before:])
	})
	t.Run("an environment that can't start", func(t *testing.T) {
		o.Environ = []string{"MILL__LOG__LEVEL=error"}
		o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
			return nil, nil, errors.New("folder is in use by another process")
		}}}
		r := run(t.Context(), o)
		require.Equal(t, app.ExitUnavailable, r.code)
		first, rest, _ := strings.Cut(r.stderr, "\n")
		require.Contains(t, first, "nothing in this environment is real", "the first line, whatever the level of the log")
		require.Equal(t, "mill: start the embedded environment: folder is in use by another process\n", rest)
	})
	for name, cause := range map[string]error{"read-only file system": syscall.EROFS, "permission denied": syscall.EACCES} {
		t.Run("an environment whose folder can't be written: "+name, func(t *testing.T) {
			o := o
			o.Environ = []string{"MILL__LOG__LEVEL=error"}
			o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {Start: func(_ context.Context, dir string, _ *slog.Logger) (map[string]any, func(context.Context) error, error) {
				return nil, nil, fmt.Errorf("data folder: %w", &fs.PathError{Op: "mkdir", Path: dir, Err: cause})
			}}}
			r := run(t.Context(), o)
			require.Equal(t, app.ExitUsage, r.code)
			_, rest, _ := strings.Cut(r.stderr, "\n")
			require.Equal(t, "mill: start the embedded environment: data folder: mkdir .mill: "+name+
				"; set data_dir (MILL__DATA_DIR) to a folder that this process can write\n", rest)
		})
	}
	t.Run("an environment that can't stop", func(t *testing.T) {
		o.DefaultProfile, o.Environments = "embedded", map[string]app.Environment{"embedded": {Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
			return nil, func(context.Context) error { return errors.New("disk full") }, nil
		}}}
		o.Environ = []string{"MILL__DATA_DIR="} // in memory: there is no running file
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		q := newToy()
		o.Plugins = []pipeline.Plugin{q}
		r := run(ended, o)
		require.Equal(t, app.ExitBad, r.code)
		require.Contains(t, r.stderr, "mill: stop the embedded environment: disk full\n")
	})
}

// A command that starts nothing judges the settings that `run` would use, so both agree.
func TestSettingsOfTheEnvironmentAreThoseOfRun(t *testing.T) {
	t.Parallel()
	ask := func(text string, args ...string) result {
		p := newToy()
		p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
			_, err := h.Load(cmd, nil)
			return err
		})
		o := options(p, append(args, "--config", settingsFile(t, text))...)
		o.Environments = map[string]app.Environment{"embedded": {
			Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
				return nil, nil, errors.New("started")
			},
			Settings: func(dir string) map[string]any {
				return map[string]any{"plugins.toy.greeting": "servers in " + dir, "plugins.another.address": "nowhere"}
			},
		}}
		return run(t.Context(), o)
	}
	const text, mistake = "data_dir: here\nplugins: {toy: {greeting: \"\"}}\n", "plugins.toy: says nothing"
	for _, command := range []string{"validate", "topology", "do"} {
		r := ask("environment: embedded\n"+text, command)
		require.Zero(t, r.code, "%s: %s", command, r.stderr)
		require.NotContains(t, r.stdout, "override", "no layer of the person who asks")
		r = ask(text, command)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, mistake, command)
	}
	for _, command := range []string{"validate", "run"} {
		r := ask("environment: embedded\n"+strings.Replace(text, "greeting", "every: soon, greeting", 1), command)
		require.Equal(t, app.ExitUsage, r.code, command)
		require.Contains(t, r.stderr, "plugins.toy.every: expected a duration", command)
		require.NotContains(t, r.stderr, mistake, command)
	}
}

// A command uses the servers of the process that runs in the data folder. It starts none.
func TestACommandUsesTheRunningEnvironment(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	environments := map[string]app.Environment{"embedded": {Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
		return map[string]any{"plugins.toy.greeting": "servers", "plugins.another.address": "nowhere"}, nil, nil
	}}}
	command := func() result {
		p := newToy()
		p.commands = func(h *app.Host) []*cobra.Command {
			return []*cobra.Command{h.ServiceFlags(&cobra.Command{Use: "read", RunE: func(cmd *cobra.Command, _ []string) error {
				return h.Services(cmd.Context(), cmd, app.ServicesOptions{}, func(context.Context, *app.Running) error {
					fmt.Fprintln(h.Out(), p.config.Greeting)
					return nil
				})
			}})}
		}
		o := options(p, "read", "--profile", "embedded")
		o.Environ, o.Environments = []string{"MILL__DATA_DIR=" + dir}, environments
		return run(t.Context(), o)
	}
	absent := result{app.ExitUnavailable, "", "mill: no embedded environment is running in " + dir +
		"; start one with `mill run` and the same settings, or name others with --config\n"}
	require.Equal(t, absent, command())
	require.NoDirExists(t, dir, "the command creates nothing")

	p := reachable{newToy()}
	o := options(p, "run", "--profile", "embedded")
	o.Environ, o.Environments = []string{"MILL__DATA_DIR=" + dir}, environments
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, o)
	file := filepath.Join(dir, "running.json")
	// The file is there before its lock is.
	require.Eventually(t, func() bool { return command() == result{app.ExitOK, "a plugin\n", ""} }, 2*time.Minute, 10*time.Millisecond)
	left, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(left), fmt.Sprintf(`"pid": %d`, os.Getpid()))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077, "the addresses are the owner's only")
	cancel()
	require.Zero(t, await(t, done).code)
	require.NoFileExists(t, file)
	require.Equal(t, absent, command())

	require.NoError(t, os.WriteFile(file, left, 0o600))
	require.Equal(t, absent, command(), "the file of a killed process")
}

// A SIGTERM that comes while the process writes its running file is a good end.
func TestAnEndWhileTheAddressesAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	o := options(endingReach{newToy(), cancel}, "run", "--profile", "embedded")
	o.Environ = []string{"MILL__DATA_DIR=" + dir}
	o.Environments = map[string]app.Environment{"embedded": {Start: func(context.Context, string, *slog.Logger) (map[string]any, func(context.Context) error, error) {
		return map[string]any{"plugins.toy.greeting": "servers"}, nil, nil
	}}}
	r := run(ctx, o)
	require.Zero(t, r.code, r.stderr)
	require.NoFileExists(t, filepath.Join(dir, "running.json"))
}

type endingReach struct {
	*toy
	end context.CancelFunc
}

func (e endingReach) Reach() map[string]any { e.end(); return nil }

// reachable has a server inside the process.
type reachable struct{ *toy }

func (reachable) Reach() map[string]any { return map[string]any{"plugins.toy.greeting": "a plugin"} }

func TestTracing(t *testing.T) {
	t.Parallel()
	provider := noop.NewTracerProvider()
	seen, flushed := make(chan trace.TracerProvider, 1), make(chan struct{}, 1)
	p := newToy()
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: func(_ context.Context, r *app.Running) error {
			seen <- r.Registry.Env().Tracer
			return nil
		}})
	})
	o := options(p, "do")
	o.Environ = []string{"MILL__INSTANCE_ID=mill-7"}
	traces := tracer{make: func(instance, version string) (trace.TracerProvider, func(context.Context) error, error) {
		require.Equal(t, "mill-7", instance)
		require.Equal(t, "v1.2.3", version)
		require.Equal(t, "hello", p.config.Greeting, "after the settings")
		return provider, func(context.Context) error {
			flushed <- struct{}{}
			return errors.New("collector is gone")
		}, nil
	}}
	o.Plugins = append(o.Plugins, traces)
	r := run(t.Context(), o)
	require.Zero(t, r.code, "traces are not worth a failure: %s", r.stderr)
	require.Contains(t, r.stderr, "collector is gone")
	require.Equal(t, provider, await(t, seen))
	await(t, flushed)

	traces.make = func(string, string) (trace.TracerProvider, func(context.Context) error, error) {
		return nil, nil, errors.New("bad endpoint")
	}
	o.Plugins = []pipeline.Plugin{p, traces}
	require.Equal(t, result{app.ExitBad, "", "mill: tracing: bad endpoint\n"}, run(t.Context(), o))

	o.Environ = []string{"MILL__PLUGINS__TRACER__ENABLED=false"}
	require.Zero(t, run(t.Context(), o).code, "a disabled plugin makes no tracer")
}

// tracer is a plugin that makes tracer providers.
type tracer struct {
	make func(instance, version string) (trace.TracerProvider, func(context.Context) error, error)
}

func (tracer) Name() string { return "tracer" }

func (tracer) Register(*pipeline.Registry) error { return nil }

func (t tracer) Tracing(_ context.Context, instance, version string) (trace.TracerProvider, func(context.Context) error, error) {
	return t.make(instance, version)
}
