package app_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// start runs Main and returns where its result will be.
func start(ctx context.Context, o app.Options) <-chan result {
	done := make(chan result, 1)
	go func() { done <- run(ctx, o) }()
	return done
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "timed out")
		panic("not reached")
	}
}

// TestSignals isn't parallel: signals reach every Main of the process.
func TestSignals(t *testing.T) {
	// A signal may arrive a moment after it was sent: until it has, Main must not have ended and
	// given its default back.
	arrived := make(chan os.Signal, 1)
	signal.Notify(arrived, syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(func() { signal.Stop(arrived) })
	send := func(t *testing.T, s syscall.Signal) {
		t.Helper()
		require.NoError(t, syscall.Kill(os.Getpid(), s))
		require.Equal(t, s, await(t, arrived))
	}
	for name, tc := range map[string]struct {
		signal syscall.Signal
		code   int
		last   string
	}{
		"SIGTERM drains and ends well": {syscall.SIGTERM, app.ExitOK, `"reason":"terminated"`},
		"Ctrl-C drains and says so":    {syscall.SIGINT, app.ExitInterrupted, "mill: interrupted\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newToy()
			done := start(t.Context(), options(p, "run"))
			p.feed.SendPayloads(`"world"`, `no JSON`, `"mill"`)
			require.Equal(t, "hello world", await(t, p.handled))
			require.Equal(t, "hello mill", await(t, p.handled))
			send(t, tc.signal)
			r := await(t, done)
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Empty(t, r.stdout)
			require.Contains(t, r.stderr, tc.last)
			require.Contains(t, r.stderr, `"msg":"stopped"`)
			require.Contains(t, r.stderr, `"what":"words","address":"memory://words"`)
			require.Equal(t, []string{"start", "start", "stop", "stop"}, p.order.all())
			require.Len(t, p.out.Messages(), 1, "the undecodable one is a dead letter")
		})
	}
	t.Run("twice, as a signal to a process and its group", func(t *testing.T) {
		for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: app.ExitOK, syscall.SIGINT: app.ExitInterrupted} {
			p, stopping, goOn := newToy(), make(chan struct{}, 2), make(chan struct{})
			p.stop = func(context.Context) error {
				stopping <- struct{}{}
				<-goOn
				return nil
			}
			o := options(p, "run")
			o.SetEcho(time.Hour) // a machine may stand still, and a second Ctrl-C would end this process
			done := start(t.Context(), o)
			p.feed.SendPayloads(`"world"`)
			await(t, p.handled)
			send(t, sig)
			await(t, stopping)
			send(t, sig)
			close(goOn)
			require.Equal(t, code, await(t, done).code)
		}
	})
	t.Run("while it starts", func(t *testing.T) {
		for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: app.ExitOK, syscall.SIGINT: app.ExitInterrupted} {
			p, starting := newToy(), make(chan struct{})
			p.start = func(ctx context.Context) error {
				close(starting)
				<-ctx.Done()
				return pipeline.ErrUnavailable
			}
			done := start(t.Context(), options(p, "run"))
			await(t, starting)
			send(t, sig)
			require.Equal(t, code, await(t, done).code)
		}
	})
	t.Run("a code that the command named itself comes first", func(t *testing.T) {
		p, ready := newToy(), make(chan struct{})
		p.commands = command(func(_ *app.Host, cmd *cobra.Command) error {
			close(ready)
			<-cmd.Context().Done()
			return &app.ExitError{Code: app.ExitBad, Err: errors.New("totals differ")}
		})
		done := start(t.Context(), options(p, "do"))
		await(t, ready)
		send(t, syscall.SIGINT)
		require.Equal(t, result{app.ExitBad, "", "mill: draining; Ctrl-C again stops at once\nmill: totals differ\n"}, await(t, done))
	})
	t.Run("a command that was not finished", func(t *testing.T) {
		for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: app.ExitInterrupted, syscall.SIGINT: app.ExitInterrupted} {
			p, ready := newToy(), make(chan struct{})
			p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
				return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: func(ctx context.Context, _ *app.Running) error {
					close(ready)
					<-ctx.Done()
					return ctx.Err()
				}})
			})
			done := start(t.Context(), options(p, "do"))
			await(t, ready)
			send(t, sig)
			require.Equal(t, code, await(t, done).code)
		}
	})
}

// TestASecondCtrlCEndsAtOnce needs a process of its own, which it ends.
func TestASecondCtrlCEndsAtOnce(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	var log pipelinetest.Buffer
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childVariable+"=1")
	child.Stderr = &log
	require.NoError(t, child.Start())
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	logged := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(log.String(), text) }, 2*time.Minute, 10*time.Millisecond)
	}
	logged(`"msg":"running"`)
	begin := time.Now() // not later than the child's own
	require.NoError(t, child.Process.Signal(syscall.SIGINT))
	logged(`"msg":"draining"`)
	draining := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			require.Greater(t, time.Since(begin), 800*time.Millisecond, "an echo of the first signal is not a second one")
			status, ok := child.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, ok)
			require.True(t, status.Signaled())
			require.Equal(t, syscall.SIGINT, status.Signal())
			return
		case <-tick.C:
			require.Less(t, time.Since(draining), 30*time.Second, "Ctrl-C again and again, and it still drains")
			_ = child.Process.Signal(syscall.SIGINT) // it may have ended just now
		}
	}
}

// command makes one command "do" with settings flags.
func command(do func(*app.Host, *cobra.Command) error) func(*app.Host) []*cobra.Command {
	return func(h *app.Host) []*cobra.Command {
		return []*cobra.Command{h.JSONFlag(h.SettingsFlags(&cobra.Command{
			Use: "do", RunE: func(cmd *cobra.Command, _ []string) error { return do(h, cmd) },
		}))}
	}
}

func TestTheEndOfTheContextDrains(t *testing.T) {
	t.Parallel()
	p := newToy()
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, options(p, "run"))
	p.feed.SendPayloads(`"world"`)
	await(t, p.handled)
	cancel()
	require.Equal(t, app.ExitOK, await(t, done).code)
}

func TestAnAbsentServerExitsWith3AfterStartTimeout(t *testing.T) {
	t.Parallel()
	p := newToy()
	p.start = func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("dial 127.0.0.1:1: connection refused")
	}
	o := options(p, "run")
	o.Environ = []string{"MILL__START_TIMEOUT=50ms"}
	r := await(t, start(t.Context(), o))
	require.Equal(t, app.ExitUnavailable, r.code)
	require.Contains(t, r.stderr, "mill: stopped waiting after 50ms (start_timeout): start toy: dial 127.0.0.1:1: connection refused\n")
	require.Equal(t, []string{"start"}, p.order.all(), "what never started isn't stopped")
}

// A command waits for less long than the service does, because somebody waits for it.
func TestAnAbsentServerExitsWith3AfterCommandWait(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		environ []string
		want    string
	}{
		"its own limit":           {[]string{"MILL__COMMAND_WAIT=50ms"}, "stopped waiting after 50ms (command_wait)"},
		"a shorter start_timeout": {[]string{"MILL__START_TIMEOUT=50ms"}, "stopped waiting after 50ms (start_timeout)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.start = func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("dial 127.0.0.1:1: connection refused")
			}
			p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
				return h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: []string{"toy"}}, func(context.Context, *app.Running) error { return nil })
			})
			o := options(p, "do")
			o.Environ = tc.environ
			r := await(t, start(t.Context(), o))
			require.Equal(t, app.ExitUnavailable, r.code)
			require.Contains(t, r.stderr, "mill: "+tc.want+": start toy: dial 127.0.0.1:1: connection refused\n")
		})
	}
}

func TestAServiceThatRefusesToStartExitsAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		code int
	}{
		"unavailable": {pipeline.ErrUnavailable, app.ExitUnavailable},
		"port in use": {&os.SyscallError{Syscall: "bind", Err: syscall.EADDRINUSE}, app.ExitUsage},
		"other":       {errors.New("maxmemory-policy is not noeviction"), app.ExitBad},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.start = func(context.Context) error { return tc.err }
			r := await(t, start(t.Context(), options(p, "run")))
			require.Equal(t, tc.code, r.code)
			require.Contains(t, r.stderr, "mill: start toy: "+tc.err.Error())
		})
	}
}

func TestAPartThatFailsEndsTheProcessWithItsReason(t *testing.T) {
	t.Parallel()
	p := newToy()
	done := start(t.Context(), options(p, "run"))
	p.feed.SendPayloads(`"world"`)
	await(t, p.handled)
	p.failed <- errors.New("the wheel broke")
	r := await(t, done)
	require.Equal(t, app.ExitBad, r.code)
	require.Regexp(t, "mill: toy(-other)?: the wheel broke\n$", r.stderr)
	require.Equal(t, []string{"start", "start", "stop", "stop"}, p.order.all())
}

func TestAStopThatFailsIsReported(t *testing.T) {
	t.Parallel()
	p := newToy()
	p.stop = func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	o := options(p, "run")
	o.Environ = []string{"MILL__STOP_TIMEOUT=2s"} // all else must have stopped by then
	done := start(ctx, o)
	p.feed.SendPayloads(`"world"`)
	await(t, p.handled)
	cancel()
	r := await(t, done)
	require.Equal(t, app.ExitBad, r.code)
	require.Contains(t, r.stderr, "mill: stop: stop toy: context deadline exceeded\n")
}

// TestRunWithReady: what Ready returns decides, whatever else stops well.
func TestRunWithReady(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ready func(context.Context, *toy, *app.Running) error
		code  int
		last  string
	}{
		"done": {func(context.Context, *toy, *app.Running) error { return nil }, 0, `"msg":"stopped"`},
		"bad":  {func(context.Context, *toy, *app.Running) error { return errors.New("not balanced") }, 1, "mill: not balanced\n"},
		"override": {func(_ context.Context, _ *toy, r *app.Running) error {
			return r.Document.Problem("plugins.toy.greeting", "seen")
		}, 2, "override: plugins.toy.greeting: seen\n"},
		"flow": {func(ctx context.Context, p *toy, _ *app.Running) error {
			p.feed.SendPayloads(`"x"`)
			select {
			case word := <-p.handled:
				return errors.New(word)
			case <-ctx.Done():
				return ctx.Err()
			}
		}, 1, "mill: override x\n"},
		"failure under it": {func(ctx context.Context, p *toy, _ *app.Running) error {
			p.failed <- errors.New("the wheel broke")
			<-ctx.Done()
			return ctx.Err()
		}, 1, ": the wheel broke\n"},
		"failure it survives": {func(ctx context.Context, p *toy, _ *app.Running) error {
			p.failed <- errors.New("the wheel broke")
			<-ctx.Done()
			return nil
		}, 1, ": the wheel broke\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
				return h.Run(cmd.Context(), cmd, app.RunOptions{
					Overrides: map[string]any{"plugins.toy.greeting": "override"},
					Ready:     func(ctx context.Context, r *app.Running) error { return tc.ready(ctx, p, r) },
				})
			})
			r := await(t, start(t.Context(), options(p, "do")))
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Contains(t, r.stderr, tc.last)
			require.Equal(t, []string{"start", "start", "stop", "stop"}, p.order.all())
		})
	}
}

func TestServicesStartsOnlyWhatACommandNeeds(t *testing.T) {
	t.Parallel()
	p, other, own := newToy(), &toy{order: &journal{}}, &toy{order: &journal{}}
	p.start = func(context.Context) error { return errors.New("must not start") }
	plugins := []string{"other"}
	var refused error
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		return h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: plugins, Register: func(r *pipeline.Registry) error {
			r.Service("own", toyService{own})
			return refused
		}}, func(_ context.Context, r *app.Running) error {
			r.Logger.Info("ready") // not shown: a command is no service
			require.Equal(t, []string{"start"}, other.order.all())
			require.Equal(t, []string{"start"}, own.order.all())
			require.Empty(t, r.Registry.Routes())
			require.Equal(t, "hello", p.config.Greeting, "settings of all plugins are read")
			return h.WriteJSON(map[string]any{"json": h.JSON(cmd), "name": h.Name()})
		})
	})
	o := options(p, "do", "--json")
	o.Plugins = append(o.Plugins, serviceOnly{other})
	r := run(t.Context(), o)
	require.Zero(t, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.JSONEq(t, `{"json": true, "name": "mill"}`, r.stdout)
	require.Equal(t, []string{"start", "stop"}, other.order.all())
	require.Equal(t, []string{"start", "stop"}, own.order.all())
	require.Empty(t, p.order.all())

	refused = errors.New("no store is configured")
	r = run(t.Context(), o)
	require.Equal(t, result{app.ExitBad, "", "mill: no store is configured\n"}, r)

	plugins = []string{"redis", "other"}
	r = run(t.Context(), o)
	require.Equal(t, result{app.ExitUsage, "", "mill: command mill do needs a plugin that this binary lacks or that is disabled: redis\n"}, r)
}

// serviceOnly is a plugin of one service.
type serviceOnly struct{ p *toy }

func (serviceOnly) Name() string { return "other" }

func (s serviceOnly) Register(r *pipeline.Registry) error {
	r.Service("other", toyService(s))
	return nil
}

func TestLoadNeedsTheSettingsFlags(t *testing.T) {
	t.Parallel()
	p := newToy()
	p.commands = func(h *app.Host) []*cobra.Command {
		return []*cobra.Command{{Use: "do", RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := h.Load(cmd, nil)
			return err
		}}}
	}
	r := run(t.Context(), options(p, "do"))
	require.Equal(t, app.ExitBad, r.code)
	require.Contains(t, r.stderr, "command mill do has no settings flags")
}

func TestLoadGivesSettingsAndPositions(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, "instance_id: mill-7\nplugins:\n  toy:\n    greeting: hi\n")
	p := newToy()
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		l, err := h.Load(cmd, map[string]any{"plugins.toy.every": time.Minute})
		require.NoError(t, err)
		require.Equal(t, "mill-7", l.Settings.InstanceID)
		require.Equal(t, time.Minute, p.config.Every)
		at, line := l.Document.Position("plugins.toy.greeting")
		require.Equal(t, file, at)
		require.Equal(t, 4, line)
		_, err = h.Load(cmd, map[string]any{"plugins.toy.every": "soon"})
		var mistake *configs.Error
		require.ErrorAs(t, err, &mistake)
		return nil
	})
	require.Zero(t, run(t.Context(), options(p, "do", "--config", file)).code)
}

func TestLogFormatAndLevel(t *testing.T) {
	t.Parallel()
	p := newToy()
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		l, err := h.Load(cmd, nil)
		l.Logger.Info("info")
		l.Logger.Warn("warn")
		require.False(t, h.IsTerminal(h.Err()))
		return err
	})
	for env, want := range map[string]string{
		"":                       `"msg":"info"`,
		"MILL__LOG__FORMAT=text": "level=INFO msg=info",
		"MILL__LOG__FORMAT=json": `"msg":"info"`,
		"MILL__LOG__LEVEL=warn":  `"msg":"warn"`,
	} {
		o := options(p, "do")
		o.Environ = []string{env}
		r := run(t.Context(), o)
		require.Contains(t, r.stderr, want)
		require.Equal(t, !strings.Contains(env, "warn"), strings.Contains(r.stderr, "info"), env)
	}
}

func TestABinaryHasAMiddlewareOfItsOwn(t *testing.T) {
	t.Parallel()
	p, routes := newToy(), make(chan string, 1)
	o := options(p, "run")
	o.Middlewares = []pipeline.Middleware{{
		Name: "tell", Place: pipeline.PlaceHandler, Routes: []string{"shout"},
		Wrap: func(handle message.HandlerFunc) message.HandlerFunc {
			return func(m *message.Message) ([]*message.Message, error) {
				routes <- message.HandlerNameFromCtx(m.Context())
				return handle(m)
			}
		},
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := start(ctx, o)
	p.feed.SendPayloads(`"world"`)
	require.Equal(t, "hello world", await(t, p.handled))
	require.Equal(t, "shout", await(t, routes))
	cancel()
	require.Equal(t, app.ExitOK, await(t, done).code)
}

// A middleware for a route that no plugin has would guard nothing.
func TestAMiddlewareOfAnUnknownRouteIsRefused(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"run", "topology"} {
		o := options(newToy(), command)
		o.Middlewares = []pipeline.Middleware{{
			Name: "tell", Place: pipeline.PlaceHandler, Routes: []string{"shuot"}, Wrap: func(h message.HandlerFunc) message.HandlerFunc { return h },
		}}
		r := run(t.Context(), o)
		require.NotZero(t, r.code, command)
		require.Contains(t, r.stderr, `middleware tell: there is no route "shuot"`, command)
	}
}
