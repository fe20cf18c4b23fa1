package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// ownModule is a module that is not Millrace's, with a binary of its own: its name, plugin,
// profiles and variables.
var ownModule = map[string]string{
	"go.mod": `module example.com/mill

go 1.26.0

require github.com/millrace-io/millrace v0.0.0

replace github.com/millrace-io/millrace => REPOSITORY
`,
	"profiles/lake.yaml": `environment: embedded
plugins:
  wheel: {turns: 5}
`,
	"profiles/pond.yaml": `plugins:
  kafka: {enabled: false}
  deadletter: {enabled: false}
  wheel: {turns: 3}
`,
	"main.go": `package main

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

//go:embed profiles
var files embed.FS

type wheel struct {
	Turns int    ` + "`yaml:\"turns\"`" + `
	Miller string ` + "`yaml:\"miller\"`" + `
}

func (*wheel) Name() string                  { return "wheel" }
func (w *wheel) Settings() any               { return w }
func (w *wheel) Stop(context.Context) error  { return nil }
func (w *wheel) Start(context.Context) error {
	fmt.Println("turns", w.Turns, "for", w.Miller)
	return nil
}
func (w *wheel) Register(r *pipeline.Registry) error {
	r.Service("wheel", w)
	return nil
}

func main() {
	profiles, err := fs.Sub(files, "profiles")
	if err != nil {
		panic(err)
	}
	k := kafka.New()
	os.Exit(app.Main(context.Background(), app.Options{
		Name: "mill", Short: "Grind grain", Profiles: profiles, EnvPrefix: "WATER",
		Environments: map[string]app.Environment{"embedded": embedded.Environment(map[string]string{
			"plugins.deadletter.store.dsn": "sqlite:{dir}/deadletters.db",
		})},
		Plugins: []pipeline.Plugin{k, deadletter.New(k).StoreIn(sqldb.Databases{}), &wheel{}},
	}))
}
`,
}

// A module of its own needs one line for Millrace in its go.mod. Its binary has its own name,
// profiles and environment variables.
func TestAModuleOfItsOwn(t *testing.T) {
	tier.Default(t)
	if testing.Short() {
		t.Skip("builds a module")
	}
	t.Parallel()
	repository, err := filepath.Abs("..")
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range ownModule {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o750))
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(text, "REPOSITORY", repository)), 0o600))
	}
	// The checksums are the repository's, so that nothing is looked up.
	sums, err := os.ReadFile("../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	start := func(environ []string, name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), environ...)
		return cmd
	}
	in := func(environ []string, name string, args ...string) string {
		t.Helper()
		out, err := start(environ, name, args...).CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
	in([]string{"GOFLAGS=-buildvcs=false -trimpath"}, "go", "mod", "tidy")
	in([]string{"GOFLAGS=-buildvcs=false -trimpath"}, "go", "build", "-o", "mill", ".")
	mill := filepath.Join(dir, "mill")

	help := in(nil, mill, "--help") + in(nil, mill, "run", "--help")
	require.Contains(t, help, "Grind grain")
	require.Contains(t, help, "built-in profile: lake, pond")
	require.Contains(t, help, "WATER_CONFIG")
	require.NotContains(t, strings.ToLower(help), "millrace")
	require.NotContains(t, help, "paid")
	require.Contains(t, in(nil, mill, "validate", "--profile", "pond"), "The settings are valid (profile pond).")
	require.Contains(t, in(nil, mill, "schema"), `"title": "mill settings"`)
	out, err := start(nil, mill, "validate", "--profile", "production").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `no profile has the name "production"; there are lake, pond`)

	run := start([]string{"WATER__PLUGINS__WHEEL__MILLER=ann", "MILLRACE__PLUGINS__WHEEL__TURNS=4"}, mill, "run", "--profile", "pond")
	stop := started(t, run, "turns 3 for ann\n")
	stop()

	// The embedded environment serves a binary without Redis and without promotions.
	run = start([]string{"WATER__PLUGINS__WHEEL__MILLER=ben"}, mill, "run", "--profile", "lake")
	stop = started(t, run, "turns 5 for ben\n")
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, ".mill", "running.json")); return err == nil },
		2*time.Minute, 10*time.Millisecond)
	require.Contains(t, in(nil, mill, "deadletter", "list", "--profile", "lake"), "No dead letters.")
	stop()
}

// started starts the command and waits until it has written the line. stop stops it.
func started(t *testing.T, run *exec.Cmd, line string) (stop func()) {
	t.Helper()
	written, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	first, err := bufio.NewReader(written).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line, first)
	return func() {
		require.NoError(t, run.Process.Signal(syscall.SIGTERM))
		require.NoError(t, run.Wait())
	}
}
