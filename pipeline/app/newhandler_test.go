package app_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// foreignModule makes a Go module that stands on this checkout, as a user's would on a release.
func foreignModule(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(top, "go.mod"))
	require.NoError(t, err)
	mod, err := modfile.Parse("go.mod", text, nil)
	require.NoError(t, err)
	ours := mod.Module.Mod.Path
	require.NoError(t, mod.AddModuleStmt("example.com/shop"))
	require.NoError(t, mod.AddRequire(ours, "v0.0.0"))
	require.NoError(t, mod.AddReplace(ours, "", top, ""))
	text, err = mod.Format()
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(top, "go.sum"))
	require.NoError(t, err)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "cmd", "shop"), 0o750))
	return dir
}

func TestNewHandlerPassesItsOwnTest(t *testing.T) {
	t.Parallel()
	dir := foreignModule(t)
	// From a folder below the module's root, as one would.
	r := run(t.Context(), options(newToy(), "new", "handler", "order-mail", "--dir", filepath.Join(dir, "cmd", "shop")))
	require.Zero(t, r.code, r.stderr)
	golden(t, "newhandler.txt", strings.ReplaceAll(r.stdout, dir, "shop"))

	target := filepath.Join(dir, "handlers", "order-mail")
	for _, name := range []string{"doc.go", "handler.go", "handler_test.go", "README.md"} {
		require.FileExists(t, filepath.Join(target, name))
	}
	text, err := os.ReadFile(filepath.Join(target, "handler.go"))
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 55, "a first handler fits on a screen")

	if testing.Short() {
		t.Skip("compiles a module")
	}
	tier.Rest(t)
	out, err := goTool(t, dir, "test", "./handlers/...")
	require.NoError(t, err, out)
	require.Contains(t, out, "ok  \texample.com/shop/handlers/order-mail")
	out, err = goTool(t, dir, "vet", "./handlers/...")
	require.NoError(t, err, out)

	// The test it comes with must be able to fail.
	for _, mistake := range []struct{ from, to, red string }{
		{"Max: 5", "Max: 4", "--- FAIL: TestAMessageThatFailsIsTriedAgainAndThenADeadLetter"},
		{"DeadLetter: p.Dead", "DeadLetter: pipeline.Drop", "--- FAIL: TestAnUndecodableMessageIsADeadLetter"},
	} {
		broken := bytes.Replace(text, []byte(mistake.from), []byte(mistake.to), 1)
		require.NotEqual(t, text, broken)
		require.NoError(t, os.WriteFile(filepath.Join(target, "handler.go"), broken, 0o600))
		out, err = goTool(t, dir, "test", "-short", "./handlers/...")
		require.Error(t, err)
		require.Contains(t, out, mistake.red)
	}
}

func goTool(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// What the checkout needs is on this machine already; -mod=mod because the copy of go.mod isn't
	// tidy.
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestNewHandlerRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/shop\n"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "handlers", "taken"), 0o750))
	noModule := t.TempDir()
	nameless := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(nameless, "go.mod"), []byte("go 1.26\n"), 0o600))
	for name, tc := range map[string]struct{ dir, name, want string }{
		"upper case":      {dir, "Mail", `NAME must be lower-case letters and digits, with - or _ between words, got "Mail"`},
		"path":            {dir, "../mail", "NAME must be"},
		"digit first":     {dir, "1st", "NAME must be"},
		"empty":           {dir, "", "NAME must be"},
		"keyword":         {dir, "func", `NAME can't be "func"`},
		"main":            {dir, "main", `NAME can't be "main"`},
		"test package":    {dir, "mail_test", `NAME can't be "mail_test"`},
		"clash":           {dir, "pipeline", `NAME can't be "pipeline"`},
		"clash of a test": {dir, "time", `NAME can't be "time"`},
		"taken":           {dir, "taken", filepath.Join(dir, "handlers", "taken") + " exists already"},
		"no module":       {noModule, "mail", "no go.mod in " + noModule},
		"no name":         {nameless, "mail", "names no module"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t.Context(), options(newToy(), "new", "handler", tc.name, "--dir", tc.dir))
			require.Equal(t, app.ExitUsage, r.code)
			require.Contains(t, r.stderr, tc.want)
			require.Empty(t, r.stdout)
		})
	}
	entries, err := os.ReadDir(filepath.Join(dir, "handlers"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing was written")
}
