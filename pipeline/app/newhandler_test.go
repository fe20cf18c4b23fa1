package app_test

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	second := run(t.Context(), options(newToy(), "new", "handler", "second", "--dir", dir))
	golden(t, "newhandler_second.txt", strings.ReplaceAll(second.stdout, dir, "shop"))

	target := filepath.Join(dir, "handlers", "order-mail")
	for _, name := range []string{"doc.go", "handler.go", "handler_test.go", "README.md"} {
		require.FileExists(t, filepath.Join(target, name))
	}
	text, err := os.ReadFile(filepath.Join(target, "handler.go"))
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 58, "a first handler fits on a screen")

	if testing.Short() {
		t.Skip("compiles a module")
	}
	tier.Rest(t)
	out, err := goTool(t, dir, "test", "./handlers/...")
	require.NoError(t, err, out)
	require.Contains(t, out, "ok  \texample.com/shop/handlers/order-mail")
	out, err = goTool(t, dir, "vet", "./...")
	require.NoError(t, err, out)
	out, err = goTool(t, dir, "run", "./cmd/shop", "topology")
	require.NoError(t, err, out)
	require.Contains(t, out, "order-mail.retry\n  from         kafka order-mail-retry\n    group      order-mail-retry")

	require.Equal(t, []string{"plugins.deadletter.store.dsn", "plugins.kafka.sasl.password"}, missingInProduction(t, dir))

	// The test it comes with must be able to fail.
	for _, mistake := range []struct{ from, to, red string }{
		{", 5, pipeline", ", 4, pipeline", "--- FAIL: TestAMessageThatFailsIsRetriedAndThenADeadLetter"},
		{`p.dead.Sink("order-mail-dead")`, "pipeline.Drop", "--- FAIL: TestAnUndecodableMessageIsADeadLetter"},
	} {
		broken := bytes.Replace(text, []byte(mistake.from), []byte(mistake.to), 1)
		require.NotEqual(t, text, broken)
		require.NoError(t, os.WriteFile(filepath.Join(target, "handler.go"), broken, 0o600))
		out, err = goTool(t, dir, "test", "-short", "./handlers/...")
		require.Error(t, err)
		require.Contains(t, out, mistake.red)
	}
}

// missingInProduction returns the secrets and files that the production settings of a new binary lack, as they are
// and with each comment that has a setting taken as one.
func missingInProduction(t *testing.T, dir string) []string {
	t.Helper()
	file := filepath.Join(dir, "cmd", "shop", "production.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	all := regexp.MustCompile(`(?m)^( *)# ( *[a-z_]+:.*)$`).ReplaceAll(text, []byte("$1$2"))
	require.Contains(t, string(all), "\ninstance_id: shop-1\n")
	changed := filepath.Join(t.TempDir(), "all.yaml")
	require.NoError(t, os.WriteFile(changed, all, 0o600))
	out, err := goTool(t, dir, "run", "./cmd/shop", "validate", "--profile", "production", "--config", changed, "--allow-unset-secrets")
	require.NoError(t, err, out)
	require.Contains(t, out, "not here: plugins.kafka.tls.ca_file: open /etc/shop/ca.pem")
	out, err = goTool(t, dir, "run", "./cmd/shop", "validate", "--profile", "production", "--allow-unset-secrets")
	require.NoError(t, err, out)
	require.Contains(t, out, "The settings are valid (profile production).")
	var missing []string
	for _, found := range regexp.MustCompile(`not here: (\S+): `).FindAllStringSubmatch(out, -1) {
		missing = append(missing, found[1])
	}
	slices.Sort(missing)
	return missing
}

// serviceModule makes a module with the wiring of this checkout, and a make that only reports.
func serviceModule(t *testing.T, makefile string) (dir string, sets []byte) {
	t.Helper()
	dir = t.TempDir()
	sets, err := os.ReadFile("../../wire/sets.go")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "wire"), 0o750))
	for name, text := range map[string]string{"go.mod": "module github.com/millrace-io/millrace\n", "Makefile": makefile, "wire/sets.go": string(sets)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir, sets
}

func TestNewHandlerWiresItselfIntoTheService(t *testing.T) {
	t.Parallel()
	dir, before := serviceModule(t, ".PHONY: wire\nwire schema reference:\n\t@echo $@ >> made\n")
	for _, name := range []string{"order-mail", "second"} {
		r := run(t.Context(), options(newToy(), "new", "handler", name, "--dir", dir))
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "changed wire/sets.go\n")
		require.Contains(t, r.stdout, "The binary has the routes "+name+" and "+name+".retry.")
	}
	made, err := os.ReadFile(filepath.Join(dir, "made"))
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("wire\nschema\nreference\n", 2), string(made))

	after, err := os.ReadFile(filepath.Join(dir, "wire", "sets.go"))
	require.NoError(t, err)
	for _, line := range []string{
		"\t\"github.com/millrace-io/millrace/handlers/order-mail\"\n",
		", ordermail.New, second.New)\n",
		"\tOrderMail   *ordermail.Plugin\n\tSecond      *second.Plugin\n}\n",
	} {
		require.Contains(t, string(after), line)
	}
	for line := range strings.Lines(string(before)) {
		require.Contains(t, string(after), strings.TrimRight(line, "),}\n"), "nothing is lost")
	}

	t.Run("a name that the wiring has", func(t *testing.T) {
		r := run(t.Context(), options(newToy(), "new", "handler", "reclaim", "--dir", dir))
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, "wire/sets.go has another reclaim or Reclaim: choose another NAME")
		require.NoDirExists(t, filepath.Join(dir, "handlers", "reclaim"))
	})
	t.Run("a folder that does not exist", func(t *testing.T) {
		r := run(t.Context(), options(newToy(), "new", "handler", "third", "--dir", filepath.Join(dir, "nowhere")))
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, "--dir: stat "+filepath.Join(dir, "nowhere"))
		require.NoDirExists(t, filepath.Join(dir, "handlers", "third"))
	})
	t.Run("a handler that exists", func(t *testing.T) {
		r := run(t.Context(), options(newToy(), "new", "handler", "second", "--dir", dir))
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, filepath.Join(dir, "handlers", "second")+" exists already: edit it")
	})
	t.Run("a wiring of another form", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "wire", "sets.go"), []byte("package wire\n\nimport \"context\"\n"), 0o600))
		r := run(t.Context(), options(newToy(), "new", "handler", "third", "--dir", dir))
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, "wire/sets.go needs one import block, the set Handlers, and the struct Service")
		require.NoDirExists(t, filepath.Join(dir, "handlers", "third"))
	})
}

// A repository with half of a handler would not compile, or each of its commands would panic.
func TestNewHandlerUndoesWhatItCannotFinish(t *testing.T) {
	t.Parallel()
	const wire = ".PHONY: wire\nwire:\n\t@echo generated > wire/wire_gen.go\n"
	for name, makefile := range map[string]string{
		"make wire fails":      ".PHONY: wire\nwire:\n\t@echo half > wire/wire_gen.go; echo a mistake; false\n",
		"make schema fails":    wire + "schema:\n\t@echo a mistake; false\n",
		"make reference fails": wire + "schema:\n\t@echo {} > configs/millrace.schema.json\nreference:\n\t@echo half > docs/settings.md; echo a mistake; false\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := serviceModule(t, makefile)
			for _, folder := range []string{"configs", "docs"} {
				require.NoError(t, os.Mkdir(filepath.Join(dir, folder), 0o750))
			}
			for _, file := range []string{"wire/wire_gen.go", "configs/millrace.schema.json", "docs/settings.md", "docs/metrics.md"} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("before"), 0o600))
			}
			before := filesBelow(t, dir)
			r := run(t.Context(), options(newToy(), "new", "handler", "mail", "--dir", dir))
			require.Equal(t, app.ExitBad, r.code)
			require.Contains(t, r.stderr, "a mistake\n")
			require.Contains(t, r.stderr, "All files are as before\n")
			require.Equal(t, before, filesBelow(t, dir))

			require.NoError(t, os.WriteFile(filepath.Join(dir, "Makefile"), []byte(".PHONY: wire\nwire schema reference:\n\t@true\n"), 0o600))
			r = run(t.Context(), options(newToy(), "new", "handler", "mail", "--dir", dir))
			require.Zero(t, r.code, "the next attempt: %s", r.stderr)
		})
	}
	t.Run("a file can't be written", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/shop\n"), 0o600))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "cmd", "shop", "production.yaml"), 0o750))
		before := filesBelow(t, dir)
		r := run(t.Context(), options(newToy(), "new", "handler", "mail", "--dir", dir))
		require.Equal(t, app.ExitUsage, r.code)
		require.Contains(t, r.stderr, "production.yaml: is a directory")
		require.Equal(t, before, filesBelow(t, dir))
	})
}

func TestNewHandlerNeedsMake(t *testing.T) {
	dir, _ := serviceModule(t, "")
	before := filesBelow(t, dir)
	t.Setenv("PATH", t.TempDir())
	r := run(t.Context(), options(newToy(), "new", "handler", "mail", "--dir", dir))
	require.Equal(t, app.ExitUsage, r.code)
	require.Contains(t, r.stderr, "need make, and nothing was written")
	require.Equal(t, before, filesBelow(t, dir))
}

// filesBelow returns the text of each file of a folder.
func filesBelow(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}

func goTool(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The modules of the checkout are in the cache. -mod=mod: the copy of go.mod isn't tidy.
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
		"taken":           {dir, "taken", filepath.Join(dir, "handlers", "taken") + " exists already: edit it, or choose another NAME"},
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
