package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/migration"
)

// Announcer is implemented by a plugin that opens addresses. They are shown when the process runs.
type Announcer interface {
	// Announce returns what to reach where, such as "operations": "http://127.0.0.1:9464". It is
	// called after the services were started.
	Announce() map[string]string
}

// Running is a process whose services have started. It is given to RunOptions.Ready and to the
// function of Host.Services, and is not valid after they return.
type Running struct {
	Loaded
	// Registry holds what the plugins registered.
	Registry *pipeline.Registry
}

// RunOptions change what Host.Run does. The zero value is `run`.
type RunOptions struct {
	// Overrides are settings of the command, dotted path to value; they win over everything but the
	// addresses of the environment.
	Overrides map[string]any
	// Demo says that the command writes for a person, and not a log.
	Demo bool
	// Ready is called when messages flow, with a context that ends with a signal or when a part of
	// the process fails. When it returns, everything is drained and stopped. Nil: wait for a
	// signal.
	Ready func(context.Context, *Running) error
}

// Run reads the settings, starts the environment, the services and the routes, and stops them in
// order. ctx is the command's. The error is that of the start, of the part that failed, of Ready,
// or of the stop.
//
// Without Ready a SIGTERM is a good end. A Ready that returns nil after a signal has the last word;
// when it returns the error of its context, Main exits with 130.
func (h *Host) Run(ctx context.Context, cmd *cobra.Command, o RunOptions) error {
	notice := logNotReal
	if o.Demo {
		notice = h.showNotReal
	}
	ctx, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	return h.open(ctx, cmd, o.Overrides, notice, false, func(l *Loaded, tracer trace.TracerProvider) error {
		schemas := migration.RequireSchemas
		if l.Settings.Migrate {
			schemas = migration.MigrateSchemas
		}
		env := h.env(l, tracer, schemas)
		if o.Ready == nil {
			env.Drain = drain
		}
		reg, err := pipeline.NewRegistry(env, h.withOwn(l.Plugins)...)
		if err != nil {
			return err
		}
		reg.Collect(h.collectors(l)...)
		reg.Offer(pagesOf(l))
		chain := middleware.New(reg, middleware.Options{MaxStuck: l.Settings.MaxStuckHandlers, PublishTimeout: l.Settings.PublishTimeout})
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{
			Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: l.Settings.StopTimeout,
		})
		work := o.Ready
		if work == nil {
			manager := newNotifier(ctx, h.opts.Environ, l)
			defer manager.close()
			work = manager.untilStopped
		}
		err = live(ctx, rt, rt.Start, l, func(ctx context.Context) error {
			h.announce(ctx, l.Logger, l.Plugins)
			remove, err := publishAddresses(ctx, l)
			if err != nil {
				return err
			}
			defer remove()
			return work(ctx, &Running{*l, reg})
		})
		l.Logger.InfoContext(ctx, "stopped")
		if o.Ready == nil && errors.Is(err, errNotStarted) && !errors.Is(context.Cause(ctx), errInterrupt) {
			return nil // SIGTERM while it started: what had started is stopped
		}
		return err
	})
}

// ServicesOptions say which services a command needs.
type ServicesOptions struct {
	// Overrides are settings of the command, dotted path to value.
	Overrides map[string]any
	// Plugins are the names of the plugins whose services are started; their order is that of
	// Options.Plugins.
	Plugins []string
	// Routes registers all enabled plugins, so that Running.Registry has every route. The services
	// of the others are not started.
	Routes bool
	// Register adds what the command needs besides, such as a part of its own plugin's services. It
	// is called after the plugins'. May be nil.
	Register func(*pipeline.Registry) error

	// allSecrets refuses secrets that have no value here. Otherwise the command needs those that it asks for, and no other.
	allSecrets bool
}

// Services starts some services without any route, calls do and stops them again: for commands that
// need clients but consume nothing. It starts no environment: it uses that of the process that runs
// in the data folder. Schemas of stores are not migrated: one that does not fit the binary ends the
// start.
func (h *Host) Services(ctx context.Context, cmd *cobra.Command, o ServicesOptions, do func(context.Context, *Running) error) error {
	return h.open(ctx, cmd, o.Overrides, nil, !o.allSecrets, func(l *Loaded, tracer trace.TracerProvider) error {
		l.command = true
		l.Settings.StartTimeout, _ = l.wait() // also for what the command starts itself
		var plugins []pipeline.Plugin
		missing := slices.Clone(o.Plugins)
		for _, p := range l.Plugins {
			needed := slices.Contains(o.Plugins, p.Name())
			if needed || o.Routes {
				plugins = append(plugins, p)
			}
			if needed {
				missing = slices.DeleteFunc(missing, func(name string) bool { return name == p.Name() })
			}
		}
		if len(missing) > 0 {
			return Usage("command %s needs a plugin that this binary lacks or that is disabled: %s", cmd.CommandPath(), strings.Join(missing, ", "))
		}
		var refused error
		if o.Register != nil {
			plugins = append(plugins, commandPlugin{func(r *pipeline.Registry) error {
				refused = o.Register(r)
				return refused
			}})
		}
		reg, err := pipeline.NewRegistry(h.env(l, tracer, migration.MatchSchemas), plugins...)
		if refused != nil {
			return refused // without the name of a plugin that is not the user's
		}
		if err != nil {
			return err
		}
		started := append([]string{commandPlugin{}.Name()}, o.Plugins...)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{StopTimeout: l.Settings.StopTimeout, ServicesOf: started})
		return live(ctx, rt, rt.StartServices, l, func(ctx context.Context) error { return do(ctx, &Running{*l, reg}) })
	})
}

type commandPlugin struct {
	register func(*pipeline.Registry) error
}

func (commandPlugin) Name() string                          { return "command" }
func (c commandPlugin) Register(r *pipeline.Registry) error { return c.register(r) }

func (h *Host) env(l *Loaded, tracer trace.TracerProvider, schemas migration.Policy) pipeline.Env {
	return pipeline.Env{Instance: l.Settings.instance(), Version: h.build().Version, InstanceConfigured: l.Settings.InstanceID != "", Environment: l.Settings.Environment, Logger: l.Logger, LogLevel: l.logLevel, Tracer: tracer, Schemas: schemas,
		Disabled: l.Disabled, StartTimeout: l.Settings.StartTimeout}
}

// open reads the settings, connects to the environment, or starts it if there is a notice, and
// starts the tracing. It stops what it started after do. With unused, a secret may have no value here unless it is
// asked for; then that is the error, because what failed without it is only the consequence.
func (h *Host) open(ctx context.Context, cmd *cobra.Command, overrides map[string]any, notice notice, unused bool, do func(*Loaded, trace.TracerProvider) error) (err error) {
	first, err := h.decode(cmd, overrides)
	if err != nil {
		if first == nil {
			return err
		}
		if _, rest := takeMissing(err); rest != nil || !unused {
			_, err = h.Load(cmd, overrides)
			return err
		}
	}
	// The addresses of the environment are still missing, so the plugins' own validation comes
	// after it.
	if err := place(first.Document, "", first.Settings.validate(h.opts.Environments)); err != nil {
		return err
	}
	addresses, stopServers, err := h.connect(ctx, first, notice)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServers()) }()

	l, err := h.loadFor(cmd, withAddresses(overrides, addresses), unused)
	if err != nil {
		return err
	}
	l.addresses = addresses
	defer func() {
		if used := l.secretsUsed(); used != nil {
			err = used
		}
	}()
	// INFO is for the life of a service.
	if notice == nil && l.Settings.Log.Level == slog.LevelInfo {
		l.Settings.Log.Level = slog.LevelWarn
		l.Logger, l.logLevel = newLogger(h.opts.Stderr, l.Settings.Log, h.opts.Environ)
	}
	l.Logger.DebugContext(ctx, "settings read", slog.Any("layers", l.Document.Layers()), slog.String("environment", l.Settings.Environment))
	tracer, flush, err := startTracing(ctx, l, h.build().Version)
	if err != nil {
		return err
	}
	defer flush()
	ballast := gcBallast()
	defer runtime.KeepAlive(ballast)
	return do(l, tracer)
}

// startTracing returns the tracer provider, nil without one, and what flushes it.
func startTracing(ctx context.Context, l *Loaded, version string) (provider trace.TracerProvider, flush func(), err error) {
	i := slices.IndexFunc(l.Plugins, func(p pipeline.Plugin) bool { _, ok := p.(Tracer); return ok })
	if i < 0 {
		return nil, func() {}, nil
	}
	tracer, _ := l.Plugins[i].(Tracer)
	provider, shutdown, err := tracer.Tracing(ctx, l.Settings.instance(), version)
	if err != nil {
		return nil, nil, fmt.Errorf("tracing: %w", err)
	}
	return provider, func() {
		if shutdown == nil {
			return
		}
		flushCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := shutdown(flushCtx); err != nil {
			l.Logger.WarnContext(ctx, "traces not flushed", logs.Err(err))
		}
	}, nil
}

// flushTimeout bounds the last export of traces; an unavailable collector must not delay a deploy.
const flushTimeout = 5 * time.Second

// live starts a runtime, does the work, and stops the runtime. The work's context ends with ctx or
// when a part of the runtime fails; that failure is then the reason.
func live(ctx context.Context, rt *pipeline.Runtime, start func(context.Context) error, l *Loaded, work func(context.Context) error) error {
	if err := startWithin(ctx, l, start); err != nil {
		return err
	}
	workCtx, cancel := context.WithCancelCause(ctx)
	var failure error
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case failure = <-rt.Failed():
			l.Logger.ErrorContext(ctx, "stopping: a part failed", logs.Err(failure))
			cancel(failure)
		case <-workCtx.Done():
		}
	})
	err := work(workCtx)
	cancel(nil)
	watch.Wait()
	if failure != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = failure // the work only noticed that it had to end
	}
	if cause := context.Cause(ctx); cause != nil {
		l.Logger.InfoContext(ctx, "draining", slog.String("reason", cause.Error()), slog.String("at_most", l.Settings.StopTimeout.String()))
	}
	if stopErr := rt.Stop(context.WithoutCancel(ctx)); stopErr != nil {
		return errors.Join(err, fmt.Errorf("stop: %w", stopErr))
	}
	return err
}

// startWithin bounds a start. After the limit of l, the server that a service waits for counts as
// unavailable.
func startWithin(ctx context.Context, l *Loaded, start func(context.Context) error) error {
	timeout, setting := l.wait()
	startCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := start(startCtx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w: %w", errNotStarted, ctx.Err(), err)
	case startCtx.Err() != nil:
		return &unavailableError{fmt.Errorf("stopped waiting after %s (%s): %w", timeout, setting, err), true}
	case noAnswer(err):
		return &unavailableError{err, true}
	}
	return err
}

// noAnswer reports whether err is that of a connection, or of a server that did not answer in time.
// A part that starts talks to nothing but servers, and not every client marks such an error with
// pipeline.ErrUnavailable.
func noAnswer(err error) bool {
	var conn *net.OpError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &conn) && conn.Op != "listen"
}

// errNotStarted marks a start that a signal ended.
var errNotStarted = errors.New("start ended")

// unavailableError marks what could not be had in time.
type unavailableError struct {
	err    error
	server bool // it has an address in the settings
}

func (e *unavailableError) Error() string     { return e.err.Error() }
func (e *unavailableError) Unwrap() error     { return e.err }
func (e *unavailableError) Unavailable() bool { return true }

func (h *Host) announce(ctx context.Context, log *slog.Logger, plugins []pipeline.Plugin) {
	for _, p := range plugins {
		a, ok := p.(Announcer)
		if !ok {
			continue
		}
		where := a.Announce()
		for _, what := range slices.Sorted(maps.Keys(where)) {
			log.InfoContext(ctx, "listening", slog.String(logs.Plugin, p.Name()), slog.String("what", what), slog.String("address", where[what]))
		}
	}
}

func (h *Host) runCommand() *cobra.Command {
	return h.ServiceFlags(&cobra.Command{
		Use:     "run",
		Short:   "Run all plugins until SIGINT or SIGTERM; both drain first",
		Example: h.examples("run --config settings.yaml"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return h.Run(cmd.Context(), cmd, RunOptions{})
		},
	})
}

// gcBallastBytes is the size of the GC ballast: a live block that makes the collector run less
// often. The live heap of a pipeline is about 15 MB and its garbage rate is high. Without ballast
// the collector runs every 15 MB; with it, every 80 MB. On the promotion pipeline that saves a
// quarter of the CPU time.
const gcBallastBytes = 40 << 20

// gcBallast returns the block. It is never written, so it uses address space but no memory. Unlike
// a memory limit it cannot make a large heap collect without end. It is nil when GOGC or GOMEMLIMIT
// is set.
func gcBallast() []byte {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, gcBallastBytes)
}
