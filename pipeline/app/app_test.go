package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// childVariable makes the test binary a mill whose service never stops.
const childVariable = "APP_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		p := newToy()
		p.stop = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		o := options(p, "run")
		os.Exit(app.Main(context.Background(), o))
	}
	goleak.VerifyTestMain(m)
}

// toyConfig has one of everything that a plugin's settings have.
type toyConfig struct {
	Greeting string         `yaml:"greeting"`
	Every    time.Duration  `yaml:"every"`
	Password setting.Secret `yaml:"password"`
	Stream   struct {
		Min int `yaml:"min"`
		Max int `yaml:"max"`
	} `yaml:"stream"`
}

func (c *toyConfig) Validate() error {
	var errs []error
	if c.Every <= 0 {
		errs = append(errs, &setting.FieldError{Path: "every", Problem: fmt.Sprintf("must be > 0, got %s", c.Every)})
	}
	if c.Stream.Min > c.Stream.Max {
		errs = append(errs, &setting.FieldError{Path: "stream.min", Problem: fmt.Sprintf("must be at most max (%d), got %d", c.Stream.Max, c.Stream.Min)})
	}
	if c.Greeting == "" {
		errs = append(errs, errors.New("says nothing"))
	}
	return errors.Join(errs...)
}

// toy is a plugin with settings, a service, a route and commands, all of them in memory.
type toy struct {
	config   toyConfig
	feed     *pipelinetest.Feed
	out      *pipelinetest.Recorder
	start    func(context.Context) error // of the service; nil: at once
	stop     func(context.Context) error
	failed   chan error
	handled  chan string
	commands func(*app.Host) []*cobra.Command
	order    *journal
}

// journal records what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string{}, j.lines...)
}

func newToy() *toy {
	p := &toy{
		feed: pipelinetest.NewFeed("words"), out: pipelinetest.NewRecorder("shouts"),
		failed: make(chan error, 1), handled: make(chan string, 10), order: &journal{},
	}
	p.config.Greeting, p.config.Every, p.config.Stream.Max = "hello", time.Second, 32
	return p
}

func (*toy) Name() string    { return "toy" }
func (p *toy) Settings() any { return &p.config }

func (p *toy) Register(r *pipeline.Registry) error {
	r.Service("toy", toyService{p})
	r.Service("toy-other", toyService{&toy{order: p.order, failed: p.failed}})
	r.Route(pipeline.Route{
		Name: "shout", From: p.feed, To: nil,
		Handle: pipeline.JSON(func(_ context.Context, word string) error {
			p.handled <- p.config.Greeting + " " + word
			return nil
		}),
		Policy: pipeline.Policy{Timeout: 3 * time.Second, DeadLetter: p.out},
	})
	return nil
}

func (p *toy) Announce() map[string]string { return map[string]string{"words": "memory://words"} }

func (p *toy) Commands(h *app.Host) []*cobra.Command {
	if p.commands == nil {
		return nil
	}
	return p.commands(h)
}

type toyService struct{ p *toy }

func (s toyService) Start(ctx context.Context) error {
	s.p.order.add("start")
	if s.p.start != nil {
		return s.p.start(ctx)
	}
	return nil
}

func (s toyService) Stop(ctx context.Context) error {
	s.p.order.add("stop")
	if s.p.stop != nil {
		return s.p.stop(ctx)
	}
	return nil
}

func (s toyService) Failed() <-chan error { return s.p.failed }

// result is what a command left behind.
type result struct {
	code           int
	stdout, stderr string
}

func options(p pipeline.Plugin, args ...string) app.Options {
	return app.Options{Name: "mill", Version: "v1.2.3", Plugins: []pipeline.Plugin{p}, Args: args, Environ: []string{}, Profiles: fstest.MapFS{
		"embedded.yaml":   {Data: []byte("environment: embedded\n")},
		"local.yaml":      {Data: []byte("environment: external\n")},
		"dev.yaml":        {Data: []byte("environment: external\nlog:\n  level: debug\n")},
		"production.yaml": {Data: []byte("environment: external\nlog:\n  format: json\n")},
	}}
}

func run(ctx context.Context, o app.Options) result {
	var stdout, stderr pipelinetest.Buffer
	o.Stdout, o.Stderr = &stdout, &stderr
	code := app.Main(ctx, o)
	return result{code, stdout.String(), stderr.String()}
}

func settingsFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "mill.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "UPDATE_GOLDEN=1 go test writes it")
	require.Equal(t, string(want), got)
}

func TestABinaryWithoutProfilesDoesNotOfferThem(t *testing.T) {
	t.Parallel()
	o := options(newToy(), "run", "--help")
	require.Contains(t, run(t.Context(), o).stdout, "built-in profile: dev, embedded")
	o.Profiles = nil
	require.NotContains(t, run(t.Context(), o).stdout, "profile:")
}

func TestUsageErrorsExitWith2(t *testing.T) {
	t.Parallel()
	group := func(*app.Host) []*cobra.Command {
		g := &cobra.Command{Use: "campaign"}
		g.AddCommand(&cobra.Command{Use: "publish", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
		list := &cobra.Command{Use: "lists", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
		list.AddCommand(&cobra.Command{Use: "create", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }})
		return []*cobra.Command{g, list}
	}
	for args, want := range map[string]string{
		"bogus":               "mill: unknown command \"bogus\"\nRun 'mill --help' for usage.\n",
		"rnu":                 "mill: unknown command \"rnu\"; did you mean \"run\"?\nRun 'mill --help' for usage.\n",
		"campaign publsh":     "mill: unknown command \"publsh\"; did you mean \"publish\"?\nRun 'mill campaign --help' for usage.\n",
		"lists craete":        "mill: unknown command \"craete\"; did you mean \"create\"?\nRun 'mill lists --help' for usage.\n",
		"run --bogus":         "mill: unknown flag: --bogus\nRun 'mill run --help' for usage.\n",
		"run now":             "mill: unknown command \"now\" for \"mill run\"\nRun 'mill run --help' for usage.\n",
		"topology --format x": "mill: --format must be table, mermaid or json, got \"x\"\nRun 'mill topology --help' for usage.\n",
		"new handler":         "mill: accepts 1 argument, received 0: mill new handler NAME\nRun 'mill new handler --help' for usage.\n",
		"version --config x":  "mill: unknown flag: --config\nRun 'mill version --help' for usage.\n",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.commands = group
			require.Equal(t, result{app.ExitUsage, "", want}, run(t.Context(), options(p, strings.Fields(args)...)))
		})
	}
}

func TestHelpExitsWith0(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"help", "run"}, {"new"}, {"completion"}} {
		r := run(t.Context(), options(newToy(), args...))
		require.Zero(t, r.code, args)
		require.Contains(t, r.stdout, "Usage:", args)
		require.Empty(t, r.stderr, args)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := run(t.Context(), options(newToy(), "completion", shell))
		require.Zero(t, r.code, shell)
		require.Contains(t, r.stdout, "mill", shell)
	}
	r := run(t.Context(), options(newToy(), "__complete", "run", "--profile", ""))
	require.Contains(t, r.stdout, "production\n")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := run(t.Context(), options(newToy(), "version"))
	require.Zero(t, r.code)
	require.Regexp(t, `^mill v1\.2\.3(, | \([0-9a-f]+\), )go\S+, \w+/\w+\n$`, r.stdout)

	r = run(t.Context(), options(newToy(), "version", "--json"))
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v))
	require.Equal(t, "v1.2.3", v["version"])
	require.Equal(t, "mill", v["name"])
}

type apart struct{}

func (apart) Error() string     { return "the dam is closed" }
func (apart) Unavailable() bool { return true }

// TestExitCodes: what a command returns decides.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"nothing":     {nil, 0, ""},
		"plain":       {errors.New("totals differ"), 1, "mill: totals differ\n"},
		"named":       {fmt.Errorf("x: %w", &app.ExitError{Code: 3, Err: errors.New("no")}), 3, "mill: x: no\n"},
		"silent":      {&app.ExitError{Code: 1}, 1, ""},
		"setting":     {fmt.Errorf("x: %w", &configs.Error{File: "f", Line: 2, Path: "a", Problem: "b"}), 2, "mill: the settings have mistakes:\n  f:2: a: b\n"},
		"unavailable": {fmt.Errorf("redis: %w", pipeline.ErrUnavailable), 3, "mill: redis: server unavailable\n"},
		"marked":      {fmt.Errorf("x: %w", apart{}), 3, "mill: x: the dam is closed\n"},
		"old schema": {
			fmt.Errorf("start: %w", &migration.Error{Migration: migration.Migration{Store: "grain", Kind: "postgres", Schema: "mill", Before: 1, After: 3, Known: 3}}), 2,
			"mill: start: grain (postgres, mill): this binary needs schema version 3, the database is at 1\n" +
				"Run 'mill migrate' with these settings, as a database user who owns the tables.\n",
		},
		"new schema": {
			fmt.Errorf("start: %w", &migration.Error{Migration: migration.Migration{Store: "grain", Kind: "postgres", Schema: "mill", Before: 4, After: 4, Known: 3}}), 2,
			"mill: start: grain (postgres, mill): this binary knows schema versions up to 3, the database is at 4\nUse a newer mill.\n",
		},
		"port in use": {fmt.Errorf("listen: %w", syscall.EADDRINUSE), 2, "mill: listen: address already in use\n"},
		"read-only":   {fmt.Errorf("store: %w", errors.Join(apart{}, &fs.PathError{Op: "mkdir", Path: "data", Err: syscall.EROFS})), 2, "mill: store:\n  the dam is closed\n  mkdir data: read-only file system\n"},
		"no rights":   {fmt.Errorf("store: %w", errors.Join(apart{}, &fs.PathError{Op: "open", Path: "data", Err: syscall.EACCES})), 2, "mill: store:\n  the dam is closed\n  open data: permission denied\n"},
		"joined":      {errors.Join(errors.New("a"), errors.New("b")), 1, "mill: a\nmill: b\n"},
		"causes":      {fmt.Errorf("kafka: open: %w", errors.Join(errors.New("kafka: a: refused"), errors.New("b: refused\x1b[2J"))), 1, "mill: kafka: open:\n  kafka: a: refused\n  b: refused\ufffd[2J\n"},
		"tab":         {errors.New("a:\n\tb"), 1, "mill: a:\n  b\n"},
		"attempts":    {errors.New("a:\n\tb\n\tb"), 1, "mill: a:\n  b\n"},
		"stutter":     {errors.New("ledger: pause: ledger: not found: x: x"), 1, "mill: ledger: pause: not found: x: x\n"},
		"two":         {errors.New("kafka: a: dial: no answer; b: dial: no answer"), 1, "mill: kafka: a: dial: no answer; b: dial: no answer\n"},
		"twice":       {errors.New("dead letters: dead letters: no answer"), 1, "mill: dead letters: no answer\n"},
		"canceled":    {context.Canceled, 1, "mill: context canceled\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.commands = func(*app.Host) []*cobra.Command {
				return []*cobra.Command{{Use: "do", RunE: func(*cobra.Command, []string) error { return tc.err }}}
			}
			require.Equal(t, result{tc.code, "", tc.stderr}, run(t.Context(), options(p, "do")))
		})
	}
}
